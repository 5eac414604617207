"""Signatures over a decision: OpenSSF `model-signing` with local elliptic-curve keys, no network.

The only module that imports `model_signing` and `cryptography`, and only when something is signed or verified.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from rollbook.records import RollbookError, digest

FILE = "decision.json"
CHECKPOINT = "checkpoint"


class SigningUnavailable(RollbookError):
    """The packages that sign and verify are not installed."""


class GateRefused(RollbookError):
    """No permission. Exit code 1: the question was understood and the answer is no."""

    exit_code = 1


class KeyRefused(RollbookError):
    """A key file that cannot be used."""


def sign(document: bytes, private_key: Path, checkpoint: Path | None = None) -> bytes:
    """The Sigstore bundle whose in-toto statement names the document and every file of the checkpoint, signed with this key."""
    signing, hashing = _signing()
    public_key(private_key)                 # refuses an unusable key before anything is written
    with tempfile.TemporaryDirectory(prefix="rollbook-gate-") as name:
        folder, bundle = _folder(Path(name), document, checkpoint), Path(name) / "bundle"
        how = hashing.Config().set_allow_symlinks(True)
        signing.Config().use_elliptic_key_signer(private_key=private_key).set_hashing_config(how).sign(folder, bundle)
        return bundle.read_bytes()


def verify(document: bytes, bundle: bytes, key: bytes, checkpoint: Path | None = None) -> None:
    """Returns when the bundle signs exactly this document with the private half of `key`; GateRefused otherwise.

    A bundle that also names the files of a checkpoint needs the folder they lie in, and holds for exactly those files.
    """
    verifying = _verifying()
    print_of_key = fingerprint(key)
    whole = covers(bundle, document)
    if whole and checkpoint is None:
        raise GateRefused("the files that this signature is over are not here", got="no checkpoint folder",
                          why="it holds for the decision and these files together",
                          fix="restore the checkpoint, then check again")
    with tempfile.TemporaryDirectory(prefix="rollbook-gate-") as name:
        folder, public, stored = (_folder(Path(name), document, checkpoint if whole else None), Path(name) / "key",
                                  Path(name) / "bundle")
        public.write_bytes(key)
        stored.write_bytes(bundle)
        try:
            how = verifying.Config().use_elliptic_key_verifier(public_key=public)
            if whole:
                how.set_hashing_config(_signing()[1].Config().set_allow_symlinks(True))
            how.verify(folder, stored)
        except Exception as error:          # the verifier raises many kinds; all mean that the signature does not hold
            raise GateRefused("the signature does not hold", got=f"{type(error).__name__} {error}".strip()[:200],
                              why=f"it was not made over this decision with the key {print_of_key[:16]}",
                              fix="verify with the public key of whoever decided, or have it signed again") from error


def new_key() -> tuple[bytes, bytes]:
    """A fresh key pair on the curve P-256: private and public part as PEM."""
    serialization, ec = _cryptography()
    private = ec.generate_private_key(ec.SECP256R1())
    pem = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return bytes(pem), _public_pem(private, serialization)


def public_key(private_key: Path) -> bytes:
    """The public part of the private key in this file, as PEM; refuses what is no usable key."""
    serialization, _ = _cryptography()
    try:
        private = serialization.load_pem_private_key(private_key.read_bytes(), None)
        _curve(private.public_key())
    except Exception as error:              # unreadable, encrypted, another format, another kind of key
        raise KeyRefused(f"the private key {private_key} cannot be used", got=f"{type(error).__name__}: {error}"[:200],
                         why="a decision is signed with an unencrypted PEM key on P-256, P-384 or P-521",
                         fix="make one with `rollbook gate key FOLDER`") from error
    return _public_pem(private, serialization)


def _public_pem(private: Any, serialization: Any) -> bytes:
    public = private.public_key()
    return bytes(public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def fingerprint(key: bytes) -> str:
    """SHA-256 of the public key in DER form: the same for every way to write it down."""
    serialization, _ = _cryptography()
    try:
        public = serialization.load_pem_public_key(key)
        _curve(public)
    except Exception as error:              # a private key, a certificate, another kind of key
        raise KeyRefused("the public key cannot be used", got=f"{type(error).__name__}: {error}"[:200],
                         why="a decision is verified with a public PEM key on P-256, P-384 or P-521",
                         fix="give the file that `rollbook gate key` wrote as .pub") from error
    return digest(bytes(public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)))


def _curve(public: Any) -> None:
    if getattr(getattr(public, "curve", None), "name", None) not in ("secp256r1", "secp384r1", "secp521r1"):
        raise ValueError("not a key on one of these curves")


def _folder(root: Path, document: bytes, checkpoint: Path | None) -> Path:
    """What is signed: the document, and beside it the checkpoint's files by link."""
    folder = root / "decision"
    folder.mkdir()
    (folder / FILE).write_bytes(document)
    for file in sorted(checkpoint.rglob("*")) if checkpoint is not None else ():
        if file.is_file():
            link = folder / CHECKPOINT / file.relative_to(checkpoint or root)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.resolve())
    return folder


def covers(bundle: bytes, document: bytes) -> bool:
    """Whether the statement also names the files of the decision. Refuses one that does not name the document's hash, or names
    anything besides: it signs something else."""
    wanted = hashlib.sha256(document).hexdigest()
    try:
        read = json.loads(bundle)
        hint = read["verificationMaterial"]["publicKey"]["hint"]
        statement = json.loads(base64.b64decode(read["dsseEnvelope"]["payload"], validate=True))
        named = {item["name"]: (item["algorithm"], item["digest"]) for item in statement["predicate"]["resources"]}
    except (ValueError, KeyError, TypeError) as error:
        raise GateRefused("the signature is not a bundle of model-signing", got=f"{type(error).__name__}: {error}"[:120],
                          why="nothing that was signed can be read from it",
                          fix="have it decided and signed again") from error
    files = {f"{CHECKPOINT}/{name}": ("sha256", value) for name, value in _files(document).items()}
    alone = {FILE: ("sha256", wanted)}
    if named not in (alone, alone | files) or not hint:
        signed = named.get(FILE, ("", "nothing"))[1]
        raise GateRefused("the signature is of another document", got=f"{signed[:16]} for {wanted[:16]}",
                          why="the decision was changed after it was signed, or the signature was taken from another one",
                          fix="have it decided and signed again")
    return bool(files) and named != alone


def _files(document: bytes) -> dict[str, str]:
    """The files that a decision names, with their hashes."""
    try:
        held = json.loads(document)["decision"]["files"]
    except (ValueError, KeyError, TypeError):
        return {}
    return {str(name): str(value) for name, value in held.items()} if isinstance(held, dict) else {}


def _signing() -> tuple[Any, Any]:
    try:
        from model_signing import hashing, signing
    except ImportError as error:
        raise _missing(error) from error
    return signing, hashing


def _verifying() -> Any:
    try:
        from model_signing import verifying
    except ImportError as error:
        raise _missing(error) from error
    return verifying


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise _missing(error) from error
    return serialization, ec


def _missing(error: ImportError) -> SigningUnavailable:
    return SigningUnavailable("the package model-signing is not installed", got=str(error),
                              why="a decision is signed and verified with it", fix="pip install 'rollbook[gate]'")
