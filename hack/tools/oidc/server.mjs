// An OpenID provider for tests and the local cluster: oidc-provider over TLS, configured by one JSON file.
//
//   node server.mjs -config oidc.json
//
// {
//   "issuer": "https://127.0.0.1:8443/<tenant>/v2.0",   where it is found, and `iss`
//   "address": "127.0.0.1", "port": 8443, "certificate": "<PEM file>", "key": "<PEM file>",
//   "admin_token": "…",           opens /admin/ as a bearer token
//   "shape": "entra" | "plain",   of access tokens: Entra ID's v2.0, or RFC 9068 as oidc-provider makes them
//   "tenant": "<uuid>",
//   "token_seconds": 3600,
//   "people": […], "resources": […], "applications": […]   see directory.mjs
// }
//
// With the administration token, a POST each:
//   /admin/keys    {}        new signing keys; the old ones still verify; gives {"kids": […]}
//   /admin/people  a person  adds or replaces the one with that id
//   /admin/revoke  {"id"}    ends all sessions of a person; their tokens buy nothing more; gives {"ended"}
//   /admin/outage  {"on"}    answers 503 to everybody else
import { createHash, timingSafeEqual } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';

import { Directory } from './directory.mjs';
import { Keys } from './keys.mjs';
import { interaction } from './pages.mjs';
import { build } from './provider.mjs';
import { forget } from './store.mjs';

const LONGEST_BODY = 65536;

const path = process.argv[process.argv.indexOf('-config') + 1];
const config = JSON.parse(readFileSync(path, 'utf8'));
const prefix = new URL(config.issuer).pathname.replace(/\/$/, '');
const directory = new Directory(config);
const keys = new Keys();
let provider;
let answer;
let outage = false;

// A provider reads its keys once, so new keys mean a new provider; sessions live in the store.
function start() {
  provider = build(config, directory, keys);
  answer = provider.callback();
}

async function body(req) {
  let text = '';
  for await (const chunk of req) {
    text += chunk;
    if (text.length > LONGEST_BODY) throw new Error('the body is too long');
  }
  return text;
}

const acts = {
  '/admin/keys': () => {
    const kids = keys.rotate();
    start();
    return { kids };
  },
  '/admin/people': (person) => {
    directory.put(person);
    return {};
  },
  '/admin/revoke': ({ id }) => {
    directory.endSessions(id);
    return { ended: forget(id) };
  },
  '/admin/outage': ({ on }) => {
    outage = on === true;
    return {};
  },
};

const digest = (text) => createHash('sha256').update(text).digest();

async function administer(req, res) {
  const given = (req.headers.authorization ?? '').replace(/^Bearer /, '');
  const allowed = timingSafeEqual(digest(given), digest(config.admin_token));
  const act = acts[req.url];
  if (!allowed || req.method !== 'POST' || !act) {
    res.writeHead(allowed ? 404 : 403).end();
    return;
  }
  const result = act(JSON.parse(await body(req)));
  res.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(result));
}

async function handle(req, res) {
  if (req.url.startsWith('/admin/')) return administer(req, res);
  if (outage) return res.writeHead(503).end('an outage was asked for');
  if (!req.url.startsWith(`${prefix}/`)) return res.writeHead(404).end();
  req.originalUrl = req.url;
  req.url = req.url.slice(prefix.length);
  if (req.url.startsWith('/interaction/')) {
    const form = req.method === 'POST' ? new URLSearchParams(await body(req)) : undefined;
    return interaction(provider, directory, req, res, form);
  }
  return answer(req, res);
}

start();
const server = createServer({ cert: readFileSync(config.certificate), key: readFileSync(config.key) }, (req, res) => {
  handle(req, res).catch((error) => {
    console.log(`${req.method} ${req.originalUrl ?? req.url}: ${error.stack}`);
    if (!res.headersSent) res.writeHead(400);
    res.end(`${error.message}\n`);
  });
});
server.on('error', (error) => {
  console.error(error.code === 'EADDRINUSE' ? `address already in use: ${config.port}` : error.stack);
  process.exit(1);
});
server.listen(config.port, config.address, () => console.log(`listening on ${config.address}:${config.port} as ${config.issuer}`));
for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => process.exit(0));
