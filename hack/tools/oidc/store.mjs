// Where oidc-provider keeps sessions, grants and tokens: one map for all providers of the process, since a rotation of
// keys makes a new provider. A restart forgets everything.
const entries = new Map(); // "Model:id" -> payload
const uids = new Map(); // session uid -> session id
const userCodes = new Map(); // device user code -> device code id

const SWEEP_EVERY = 1000;
let writes = 0;

function remove(key) {
  const payload = entries.get(key);
  entries.delete(key);
  if (payload?.uid) uids.delete(payload.uid);
  if (payload?.userCode) userCodes.delete(payload.userCode);
}

function removeWhere(test) {
  let removed = 0;
  for (const [key, payload] of entries) {
    if (test(key, payload)) {
      remove(key);
      removed += 1;
    }
  }
  return removed;
}

// Ends what a person is logged in with. Returns how many refresh tokens were good until now.
export function forget(accountId) {
  const good = ([key, it]) => key.startsWith('RefreshToken:') && it.accountId === accountId && !it.consumed;
  const ended = [...entries].filter(good).length;
  removeWhere((_, it) => it.accountId === accountId);
  return ended;
}

export class Store {
  constructor(model) {
    this.model = model;
  }

  key(id) {
    return `${this.model}:${id}`;
  }

  async upsert(id, payload, expiresIn) {
    writes += 1;
    if (writes % SWEEP_EVERY === 0) {
      const now = Date.now() / 1000;
      removeWhere((_, it) => it.exp !== undefined && it.exp < now);
    }
    const exp = payload.exp ?? (expiresIn ? Math.floor(Date.now() / 1000) + expiresIn : undefined);
    entries.set(this.key(id), { ...payload, exp });
    if (this.model === 'Session') uids.set(payload.uid, id);
    if (payload.userCode) userCodes.set(payload.userCode, id);
  }

  async find(id) {
    return entries.get(this.key(id));
  }

  async findByUid(uid) {
    return this.find(uids.get(uid));
  }

  async findByUserCode(userCode) {
    return this.find(userCodes.get(userCode));
  }

  async consume(id) {
    entries.get(this.key(id)).consumed = Math.floor(Date.now() / 1000);
  }

  async destroy(id) {
    remove(this.key(id));
  }

  async revokeByGrantId(grantId) {
    removeWhere((_, it) => it.grantId === grantId);
  }
}
