// Who and what the provider knows: people, resources (the APIs that tokens are for) and applications.
//
// person: {id, login, password, name, groups: [], roles: {resource: [role]}, disabled}
//   `id` never changes; everything else may.
// resource: {id: "api://name", audience, app, scopes: []}
//   `app` is the application whose own API it is: it may trade tokens for this resource on behalf of their person.
// application: {client_id, oid, secret | certificate | neither, redirect_uris, delegated: {resource: [scope]},
//   roles: {resource: [role]}}
//   With neither it is a public client. `delegated` is what it may do for people, `roles` what it may do as itself.
import { createHash, timingSafeEqual } from 'node:crypto';

const digest = (text) => createHash('sha256').update(text).digest();

export class Directory {
  constructor({ people, resources, applications }) {
    this.people = new Map(people.map((it) => [it.id, { groups: [], roles: {}, ...it }]));
    this.resources = new Map(resources.map((it) => [it.id, it]));
    this.applications = new Map(applications.map((it) => [it.client_id, { delegated: {}, roles: {}, ...it }]));
    this.generations = new Map();
  }

  put(person) {
    if (typeof person.id !== 'string' || typeof person.login !== 'string') throw new Error('a person needs id and login');
    this.people.set(person.id, { groups: [], roles: {}, ...person });
  }

  // The person, unless unknown or disabled.
  active(id) {
    const person = this.people.get(id);
    return person && !person.disabled ? person : undefined;
  }

  login(login, password) {
    for (const person of this.people.values()) {
      const same = timingSafeEqual(digest(password), digest(person.password));
      if (person.login === login && same && !person.disabled) return person;
    }
    return undefined;
  }

  // How often the person's sessions were ended. Tokens carry it, so that older ones buy nothing.
  generation(id) {
    return this.generations.get(id) ?? 0;
  }

  endSessions(id) {
    this.generations.set(id, this.generation(id) + 1);
  }

  // The resource that a scope parameter names, as Entra reads "api://name/scope"; known or not.
  resourceOf(scope = '') {
    const word = scope.split(' ').find((it) => /^[a-z]+:\/\//.test(it));
    return word && ([...this.resources.keys()].find((id) => word.startsWith(`${id}/`)) ?? word);
  }

  // What an application may ask a person for on a resource, as words of a scope parameter.
  scopeWords(resource, clientId) {
    const delegated = this.applications.get(clientId)?.delegated[resource] ?? [];
    return [`${resource}/.default`, ...delegated.map((scope) => `${resource}/${scope}`), ...delegated];
  }

  // The scopes that granted words mean; ".default" means all that the application has.
  scopes(resource, clientId, words) {
    const delegated = this.applications.get(clientId)?.delegated[resource] ?? [];
    if (words.has(`${resource}/.default`)) return delegated;
    return delegated.filter((scope) => words.has(scope) || words.has(`${resource}/${scope}`));
  }
}
