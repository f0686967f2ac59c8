// oidc-provider, set up from our configuration.
import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';

import { Provider, errors } from 'oidc-provider';

import { shape } from './entra.mjs';
import * as onBehalf from './onbehalf.mjs';
import { Store } from './store.mjs';

const DEVICE = 'urn:ietf:params:oauth:grant-type:device_code';

// An application as oidc-provider's client metadata.
function client(application, entra) {
  const { client_id, secret, certificate, redirect_uris = [] } = application;
  const people = redirect_uris.length ? ['authorization_code', 'refresh_token'] : ['refresh_token'];
  const common = { client_id, redirect_uris, response_types: redirect_uris.length ? ['code'] : [] };
  if (!secret && !certificate) {
    // RFC 8252: a native application may listen on any port of the loopback address.
    const grant_types = [...people, DEVICE];
    return { ...common, grant_types, token_endpoint_auth_method: 'none', application_type: 'native' };
  }
  const grant_types = [...people, 'client_credentials', ...(entra ? [onBehalf.GRANT] : [])];
  if (secret) return { ...common, grant_types, client_secret: secret, token_endpoint_auth_method: 'client_secret_post' };
  const key = new X509Certificate(readFileSync(certificate)).publicKey.export({ format: 'jwk' });
  return { ...common, grant_types, token_endpoint_auth_method: 'private_key_jwt', jwks: { keys: [{ ...key, use: 'sig' }] } };
}

// Claims of ID tokens and of the userinfo endpoint. An ID token lists the person's roles on the application's own API.
function account(directory, tenant, id, clientId) {
  const person = directory.active(id);
  if (!person) return undefined;
  const { name, login, groups } = person;
  const own = [...directory.resources.values()].find((it) => it.app === clientId);
  const roles = own && person.roles[own.id];
  const claims = { sub: id, oid: id, tid: tenant, ver: '2.0', name, preferred_username: login, groups, roles };
  return { accountId: id, claims: async () => claims };
}

export function build(config, directory, keys) {
  const entra = config.shape === 'entra';
  const seconds = config.token_seconds;

  const resourceServer = (id, { clientId }) => {
    const resource = directory.resources.get(id);
    if (!resource) throw new errors.InvalidTarget();
    return {
      audience: resource.audience,
      scope: directory.scopeWords(id, clientId).join(' '),
      accessTokenTTL: seconds,
      accessTokenFormat: 'jwt',
      jwt: { sign: { alg: resource.alg ?? 'RS256' } },
    };
  };

  const provider = new Provider(config.issuer, {
    adapter: Store,
    jwks: { keys: keys.private },
    clients: [...directory.applications.values()].map((it) => client(it, entra)),
    findAccount: (ctx, id) => account(directory, config.tenant, id, ctx.oidc.client?.clientId),
    claims: { openid: ['sub', 'oid', 'tid', 'ver', 'roles'], profile: ['name', 'preferred_username'], groups: ['groups'] },
    scopes: ['openid', 'offline_access', 'profile', 'groups'],
    conformIdTokenClaims: false, // as Entra: the claims of `profile` stand in the ID token itself
    expiresWithSession: () => false,
    pkce: { required: () => true },
    ttl: {
      AccessToken: seconds, ClientCredentials: seconds, IdToken: seconds, AuthorizationCode: 300, DeviceCode: 900,
      RefreshToken: 14 * 86400, Grant: 14 * 86400, Session: 86400, Interaction: 3600,
    },
    interactions: { url: (_ctx, { uid }) => `${new URL(config.issuer).pathname.replace(/\/$/, '')}/interaction/${uid}` },
    features: {
      devInteractions: { enabled: false },
      deviceFlow: { enabled: true },
      clientCredentials: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: (ctx, _client, oneOf) => oneOf?.[0] ?? directory.resourceOf(ctx.oidc.params.scope),
        useGrantedResource: () => true,
        getResourceServerInfo: (_ctx, id, asker) => resourceServer(id, asker),
      },
    },
    extraTokenClaims: (_ctx, token) => (entra ? undefined : plainClaims(directory, token)),
    formats: {
      customizers: { jwt: (_ctx, token, jwt) => { if (entra) shape(directory, config.tenant, token, jwt); } },
    },
  });
  if (entra) {
    const setup = { directory, keys, issuer: config.issuer, resourceServer };
    provider.registerGrantType(onBehalf.GRANT, onBehalf.handler(setup), onBehalf.PARAMETERS);
  }
  for (const event of ['server_error', 'grant.error', 'authorization.error', 'device_authorization.error']) {
    provider.on(event, (_ctx, error) => console.log(`${event}: ${error.message}: ${error.error_description ?? ''} ${error.error_detail ?? ''}`));
  }
  provider.on('server_error', (_ctx, error) => console.log(error.stack));
  return provider;
}

// What a plain provider adds to RFC 9068's claims.
function plainClaims(directory, token) {
  const resource = token.resourceServer?.identifier();
  if (token.kind === 'ClientCredentials') return { roles: directory.applications.get(token.clientId).roles[resource] };
  const person = directory.active(token.accountId);
  return { preferred_username: person?.login, groups: person?.groups, roles: person?.roles[resource] };
}
