// Signing keys. The newest of each kind signs, all verify; like Entra's, they are published without `alg`.
import { generateKeyPairSync, randomUUID } from 'node:crypto';

function make(type, options) {
  const { privateKey } = generateKeyPairSync(type, options);
  return { ...privateKey.export({ format: 'jwk' }), kid: randomUUID(), use: 'sig' };
}

export class Keys {
  constructor() {
    this.private = [];
    this.rotate();
  }

  // Returns the key ids that sign from now on.
  rotate() {
    const fresh = [make('rsa', { modulusLength: 2048 }), make('ec', { namedCurve: 'P-256' })];
    this.private.unshift(...fresh);
    return fresh.map((key) => key.kid);
  }

  public() {
    return { keys: this.private.map(({ kty, kid, use, n, e, crv, x, y }) => ({ kty, kid, use, n, e, crv, x, y })) };
  }
}
