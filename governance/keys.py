"""Every key of the product: made, sealed at rest, opened, derived and used; the home of `cryptography`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from engine.errors import OperatorError
from engine.ids import keyed
from engine.ledger.ed25519 import check_public
from governance.clock import random_bytes

SIGNING = ("log", "bundle", "receipt")  # Ed25519; log and bundle never share a key, so one theft is not both
SECRETS = ("hash", "button", "payload")  # 32 bytes for HMAC or AES
PURPOSES = SIGNING + SECRETS

_secret_bytes = 32
_p256_order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_nonce_bytes = 12
_sealed_version = b"\x01"


@dataclass(frozen=True, slots=True)
class SealedKey:
    """A key as the database holds it: `sealed` opens only under the master key and for this tenant and purpose."""

    tenant: str
    purpose: str
    key_id: str
    public: bytes  # empty for a secret that signs nothing
    sealed: bytes


@dataclass(frozen=True, slots=True)
class Signer:
    """An Ed25519 key that can be used; `sign` is what engine.ledger takes as its callable.

    The one seam for a key service: whoever signs elsewhere gives this object a `sign` that asks there, and nothing else of
    the product sees a private key.
    """

    key_id: str
    public: bytes
    sign: Callable[[bytes], bytes]


class Keyring:
    """The master key from the settings, and what it opens; it never leaves this object."""

    def __init__(self, master: bytes) -> None:
        if len(master) != _secret_bytes:
            raise OperatorError(
                "the master key has 32 bytes", field="TWOKEYS_MASTER_KEY", next_step="use 64 hexadecimal digits"
            )
        self._sealing = derive(master, "twokeys/seal-keys/v1")

    def create(self, tenant: str, purpose: str) -> SealedKey:
        """A new key of this purpose, sealed; store it and record `key.created`."""
        return self.seal_key(tenant, purpose, random_bytes(_secret_bytes))

    def seal_key(self, tenant: str, purpose: str, secret: bytes) -> SealedKey:
        """Seal a secret that exists already, e.g. one handed over by a customer."""
        _check_purpose(purpose)
        if len(secret) != _secret_bytes:
            raise OperatorError("a key has 32 bytes", field=purpose)
        public = public_of(secret) if purpose in SIGNING else b""
        return SealedKey(
            tenant=tenant,
            purpose=purpose,
            key_id=key_id(public) if public else secret_id(secret),
            public=public,
            sealed=seal(self._sealing, secret, tenant, purpose),
        )

    def signer(self, key: SealedKey) -> Signer:
        """Open a signing key; a public half that does not belong to the secret is refused."""
        if key.purpose not in SIGNING:
            raise OperatorError(f"a key for {key.purpose} signs nothing", code="key_purpose")
        private = Ed25519PrivateKey.from_private_bytes(self._open(key))
        public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        if public != key.public:
            raise OperatorError(f"the stored public half of key {key.key_id} is not its own", code="key_mismatch")
        return Signer(key_id(public), public, private.sign)

    def secret(self, key: SealedKey) -> bytes:
        """Open a secret for HMAC or AES."""
        if key.purpose not in SECRETS:
            raise OperatorError(f"a key for {key.purpose} is used through its signer", code="key_purpose")
        return self._open(key)

    def _open(self, key: SealedKey) -> bytes:
        return unseal(self._sealing, key.sealed, key.tenant, key.purpose)


def signer_of(seed: bytes) -> Signer:
    """The key of an Ed25519 seed that is kept elsewhere than in our database."""
    if len(seed) != _secret_bytes:
        raise ValueError("an Ed25519 seed has 32 bytes")
    private = Ed25519PrivateKey.from_private_bytes(seed)
    public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return Signer(key_id(public), public, private.sign)


def seal(key: bytes, plain: bytes, tenant: str, purpose: str) -> bytes:
    """AES-256-GCM: version, nonce, ciphertext; tenant and purpose are authenticated, so nothing opens elsewhere."""
    nonce = random_bytes(_nonce_bytes)
    return _sealed_version + nonce + AESGCM(key).encrypt(nonce, plain, _context(tenant, purpose))


def unseal(key: bytes, sealed: bytes, tenant: str, purpose: str) -> bytes:
    """The plain bytes of `seal` for the same key, tenant and purpose."""
    nonce, box = sealed[1 : 1 + _nonce_bytes], sealed[1 + _nonce_bytes :]
    if sealed[:1] != _sealed_version or len(nonce) != _nonce_bytes:
        raise OperatorError("these bytes were not sealed by this version", code="unseal")
    try:
        return AESGCM(key).decrypt(nonce, box, _context(tenant, purpose))
    except InvalidTag:
        raise OperatorError(
            f"what is sealed for {tenant}/{purpose} does not open",
            code="unseal",
            next_step="check that TWOKEYS_MASTER_KEY is the one it was sealed with",
        ) from None


def derive(secret: bytes, purpose: str, tenant: str = "", size: int = _secret_bytes) -> bytes:
    """HKDF-SHA256: one independent key per purpose and tenant."""
    return HKDF(algorithm=SHA256(), length=size, salt=None, info=_context(tenant, purpose)).derive(secret)


def mac(key: bytes, purpose: str, *parts: str) -> bytes:
    """HMAC-SHA256 over the parts with their lengths, so that no two lists of parts give the same text."""
    framed = b"".join(
        len(raw).to_bytes(4, "big") + raw for raw in (purpose.encode(), *(part.encode() for part in parts))
    )
    return keyed(key, framed)


def hashed(key: bytes, purpose: str, *parts: str) -> str:
    """What policy and entries see instead of a guessable value: HMAC-SHA256 in hex under the tenant's hash key."""
    return mac(key, purpose, *parts).hex()


def button_mac(key: bytes, *parts: str) -> str:
    """The 16 hex digits at the end of a button's value."""
    return mac(key, "twokeys/button/v1", *parts).hex()[:16]


def hook_signature(secret: str, timestamp: str, body: bytes) -> str:
    """What stands in X-Twokeys-Signature, of what is posted to us and of what we post."""
    return "v1=" + hmac.new(secret.encode(), timestamp.encode("ascii") + b"." + body, hashlib.sha256).hexdigest()


def same(left: str | bytes, right: str | bytes) -> bool:
    """Equality in constant time."""
    raw = [part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part for part in (left, right)]
    return hmac.compare_digest(raw[0], raw[1])


def public_of(seed: bytes) -> bytes:
    """The public half of an Ed25519 seed."""
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


@dataclass(frozen=True, slots=True)
class TokenSigner:
    """A P-256 key for those who do not know Ed25519; `sign` gives the 64 bytes of a JWS, the same ones for the same text."""

    pem: str  # of the public half
    sign: Callable[[bytes], bytes]


def token_signer_of(seed: bytes) -> TokenSigner:
    """The P-256 key of a seed; what we derive is never near enough to the group's order for the remainder to matter."""
    private = ec.derive_private_key(1 + int.from_bytes(seed) % (_p256_order - 1), ec.SECP256R1())

    def sign(text: bytes) -> bytes:
        r, s = decode_dss_signature(private.sign(text, ec.ECDSA(SHA256(), deterministic_signing=True)))
        return r.to_bytes(32) + s.to_bytes(32)

    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return TokenSigner(pem.decode("ascii"), sign)


def signed_by(public: bytes, data: bytes, signature: bytes) -> bool:
    """Whether this key signed these bytes."""
    try:
        _public(public).verify(signature, data)
    except InvalidSignature:
        return False
    return True


@lru_cache(maxsize=1024)
def _public(public: bytes) -> Ed25519PublicKey:
    check_public(public)  # a key of small order would accept a signature that nobody made
    return Ed25519PublicKey.from_public_bytes(public)


def key_id(public: bytes) -> str:
    """The name of a public key: 16 hex digits of its hash, the same that the verifier computes."""
    return hashlib.sha256(b"twokeys/key/v1\x00" + public).hexdigest()[:16]


def secret_id(secret: bytes) -> str:
    """The name of a secret: from a derived value, so that it tells nothing about the secret."""
    return derive(secret, "twokeys/secret-id/v1", size=8).hex()


def _context(tenant: str, purpose: str) -> bytes:
    return _framed(purpose, tenant)


def _framed(*parts: str) -> bytes:
    return b"".join(len(raw).to_bytes(4, "big") + raw for raw in (part.encode() for part in parts))


def _check_purpose(purpose: str) -> None:
    if purpose not in PURPOSES:
        raise OperatorError(f"{purpose!r} is not a purpose of a key", next_step=f"one of {', '.join(PURPOSES)}")
