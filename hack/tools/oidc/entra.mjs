// The claims of Entra ID's v2.0 access tokens
// (https://learn.microsoft.com/entra/identity-platform/access-token-claims-reference).
import { createHash } from 'node:crypto';

// How the application proved itself: not at all, by secret, by certificate.
const PROOF = { none: '0', client_secret_basic: '1', client_secret_post: '1', private_key_jwt: '2' };

// Entra gives each application another `sub` for the same person; `oid` is the same for all.
const pairwise = (person, audience) => createHash('sha256').update(`${person}\n${audience}`).digest('base64url');

// `aio` is opaque to everybody but the provider; ours says how often the person's sessions had been ended.
export const stateOf = (claims) => JSON.parse(Buffer.from(claims.aio, 'base64url').toString());
const stateFor = (state) => Buffer.from(JSON.stringify(state)).toString('base64url');

// Turns a token that oidc-provider is about to sign into Entra's shape.
export function shape(directory, tenant, token, jwt) {
  const { iss, iat, exp, aud, jti } = jwt.payload;
  const resource = token.resourceServer.identifier();
  const application = directory.applications.get(token.clientId);
  const common = {
    aud, iss, iat, nbf: iat, exp, tid: tenant, uti: jti, ver: '2.0',
    azp: token.clientId,
    azpacr: PROOF[token.client.clientAuthMethod],
  };
  jwt.header = { typ: 'JWT' };
  if (token.kind === 'ClientCredentials') {
    const roles = application.roles[resource];
    jwt.payload = { ...common, idtyp: 'app', oid: application.oid, sub: application.oid, roles };
    return;
  }
  const person = directory.active(token.accountId);
  jwt.payload = {
    ...common,
    aio: stateFor({ generation: directory.generation(person.id) }),
    oid: person.id,
    sub: pairwise(person.id, aud),
    name: person.name,
    preferred_username: person.login,
    scp: directory.scopes(resource, token.clientId, token.scopes).join(' ') || undefined,
    groups: person.groups.length ? person.groups : undefined,
    roles: person.roles[resource],
  };
}
