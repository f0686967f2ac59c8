// Entra's on-behalf-of grant: an application that was called with a person's token trades it for a token of the same
// person for the next API (https://learn.microsoft.com/entra/identity-platform/v2-oauth2-on-behalf-of-flow).
import { createLocalJWKSet, jwtVerify } from 'jose';
import { errors } from 'oidc-provider';

import { stateOf } from './entra.mjs';

export const GRANT = 'urn:ietf:params:oauth:grant-type:jwt-bearer';
export const PARAMETERS = ['assertion', 'requested_token_use', 'scope', 'resource'];

const refused = (why) => new errors.CustomOIDCProviderError('invalid_grant', why);

// The person behind the assertion, if the application may act on it.
async function personOf(assertion, { directory, keys, issuer }, clientId) {
  const own = [...directory.resources.values()].filter((it) => it.app === clientId).map((it) => it.audience);
  if (!own.length) throw refused('the application has no API of its own');
  let claims;
  try {
    const options = { issuer, audience: own, requiredClaims: ['exp', 'oid', 'aio'] };
    ({ payload: claims } = await jwtVerify(assertion, createLocalJWKSet(keys.public()), options));
  } catch (error) {
    throw refused(`the assertion is not a valid token for the application's own API: ${error.message}`);
  }
  if (claims.idtyp === 'app' || !claims.scp) throw refused('the assertion is not of a person');
  const person = directory.active(claims.oid);
  if (!person) throw refused('the person is unknown or disabled');
  if (stateOf(claims).generation !== directory.generation(person.id)) throw refused("the person's sessions were ended");
  return person;
}

export function handler(setup) {
  const { directory, resourceServer } = setup;
  return async (ctx) => {
    const { client, params, provider } = ctx.oidc;
    if (params.requested_token_use !== 'on_behalf_of') {
      throw new errors.InvalidRequest('requested_token_use must be on_behalf_of');
    }
    if (!params.assertion) throw new errors.InvalidRequest("missing required parameter 'assertion'");
    const person = await personOf(params.assertion, setup, client.clientId);

    const resource = params.resource ?? directory.resourceOf(params.scope);
    if (typeof resource !== 'string') throw new errors.InvalidScope('the scope names no known API', params.scope);
    const info = resourceServer(resource, client);
    const asked = new Set((params.scope ?? `${resource}/.default`).split(' '));
    const known = new Set(info.scope.split(' '));
    const words = [...asked].filter((word) => known.has(word));
    if (!directory.scopes(resource, client.clientId, new Set(words)).length) {
      throw refused('consent_required: the application may not do this for people');
    }

    const grant = new provider.Grant({ accountId: person.id, clientId: client.clientId });
    const offline = asked.has('offline_access');
    if (offline) grant.addOIDCScope('offline_access');
    grant.addResourceScope(resource, words);
    const common = { accountId: person.id, client, grantId: await grant.save(), gty: 'jwt_bearer' };

    const token = new provider.AccessToken({ ...common, scope: words.join(' ') });
    token.resourceServer = new provider.ResourceServer(resource, info);
    ctx.oidc.entity('AccessToken', token);
    ctx.body = {
      access_token: await token.save(),
      token_type: 'Bearer',
      expires_in: token.expiration,
      scope: words.join(' '),
    };
    if (offline) {
      const scope = ['offline_access', ...words].join(' ');
      const refresh = new provider.RefreshToken({ ...common, scope, resource, rotations: 0 });
      ctx.oidc.entity('RefreshToken', refresh);
      ctx.body.refresh_token = await refresh.save();
    }
  };
}
