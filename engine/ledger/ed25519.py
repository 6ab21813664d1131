"""Ed25519 verification, strict (RFC 8032): by `cryptography` where it is installed, else by the arithmetic below.

Both ways accept exactly the same: a canonical key that is not of small order, S below the group's order, and the one
encoding of R that the equation gives.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TypeAlias

from engine.errors import BrokenLedger

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    has_cryptography = True
except ImportError:
    has_cryptography = False

Point: TypeAlias = tuple[int, int, int, int]

_prime = 2**255 - 19
_order = 2**252 + 27742317777372353535851937790883648493
_curve_d = -121665 * pow(121666, _prime - 2, _prime) % _prime
_root_of_minus_one = pow(2, (_prime - 1) // 4, _prime)
_neutral: Point = (0, 1, 1, 0)


@lru_cache(maxsize=256)
def check_public(public: bytes) -> None:
    """Return when these 32 bytes are a key that can be trusted; a key of small order would accept forged signatures."""
    point = _decode_point(public) if len(public) == 32 else None
    if point is None:
        raise BrokenLedger("not a canonical Ed25519 key", code="weak-key")
    for _ in range(3):
        point = _add_points(point, point)
    if _is_neutral(point):
        raise BrokenLedger("an Ed25519 key of small order accepts forged signatures", code="weak-key")


def verify_signature(public: bytes, message: bytes, signature: bytes, *, arithmetic: bool = False) -> bool:
    """Whether the holder of this key signed this message; `arithmetic` forces the way without `cryptography`."""
    if len(public) != 32 or len(signature) != 64 or int.from_bytes(signature[32:], "little") >= _order:
        return False
    if arithmetic or not has_cryptography:
        return _verify_point(public, message, signature)
    try:
        check_public(public)
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (BrokenLedger, InvalidSignature, ValueError):
        return False
    return True


def _verify_point(public: bytes, message: bytes, signature: bytes) -> bool:
    point = _decode_point(public)
    if point is None or _is_neutral(_add_points(*[_add_points(*[_add_points(point, point)] * 2)] * 2)):
        return False
    s = int.from_bytes(signature[32:], "little")
    k = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % _order
    x, y, z, t = point
    return _encode_point(_double_scalar(s, _base_of_curve, k, (_prime - x, y, z, _prime - t))) == signature[:32]


def _double_scalar(s: int, left: Point, k: int, right: Point) -> Point:
    """s times the left plus k times the right point, both scalars in one pass."""
    both = _add_points(left, right)
    result = _neutral
    for bit in range(max(s.bit_length(), k.bit_length()) - 1, -1, -1):
        result = _add_points(result, result)
        which = (s >> bit & 1, k >> bit & 1)
        if which == (1, 1):
            result = _add_points(result, both)
        elif which == (1, 0):
            result = _add_points(result, left)
        elif which == (0, 1):
            result = _add_points(result, right)
    return result


def _add_points(left: Point, right: Point) -> Point:
    # RFC 8032 5.1.4: complete, so doubling needs no case of its own.
    a = (left[1] - left[0]) * (right[1] - right[0]) % _prime
    b = (left[1] + left[0]) * (right[1] + right[0]) % _prime
    c = 2 * left[3] * right[3] * _curve_d % _prime
    d = 2 * left[2] * right[2] % _prime
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _prime, g * h % _prime, f * g % _prime, e * h % _prime


def _decode_point(raw: bytes) -> Point | None:
    """The point of its one encoding; None for a y that is not reduced, an x that does not exist, or minus zero."""
    y = int.from_bytes(raw, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    if y >= _prime:
        return None
    square = (y * y - 1) * pow(_curve_d * y * y + 1, _prime - 2, _prime) % _prime
    x = pow(square, (_prime + 3) // 8, _prime)
    if (x * x - square) % _prime:
        x = x * _root_of_minus_one % _prime
    if (x * x - square) % _prime or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = _prime - x
    return x, y, 1, x * y % _prime


def _encode_point(point: Point) -> bytes:
    inverse = pow(point[2], _prime - 2, _prime)
    x, y = point[0] * inverse % _prime, point[1] * inverse % _prime
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _is_neutral(point: Point) -> bool:
    return point[0] % _prime == 0 and (point[1] - point[2]) % _prime == 0


def _base_point() -> Point:
    point = _decode_point((4 * pow(5, _prime - 2, _prime) % _prime).to_bytes(32, "little"))
    assert point is not None, "the base point of the curve is on the curve"
    return point


_base_of_curve = _base_point()
