"""API keys: named, hashed at rest, each with what it grants.

A key has the form `bj_ID_SECRET`. The id is not secret: it selects the entry, so a check costs one constant-time
comparison however many keys exist. The secret has 256 random bits and is in no dictionary, so plain SHA-256 is enough
at rest.

The file is replaced as a whole by rename. The server checks its time and size at each request, at most every 50 ms, so
a revoked key is refused from then on.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from belljar.contract.errors import CallerError, InvalidSettings
from belljar.contract.execution import LIMIT_UNITS
from belljar.settings import Settings

OPERATOR = "operator"  # the key given by a setting

_FORMAT = 1
_LOOK_SECONDS = 0.05
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NO_KEY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """What a caller may use; None means as much as the server gives any caller."""

    max_concurrent: int | None = None
    requests_per_minute: int | None = None
    max_sessions: int | None = None
    limits: Mapping[str, float] = field(default_factory=dict)  # ceilings, by the names of the API
    network: bool = False
    tools: bool | Sequence[str] = False  # all of them, or these


EVERYTHING = Grants(network=True, tools=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key(Grants):
    """A named key, and what it grants."""

    name: str
    id: str = ""
    digest: str = _NO_KEY
    created_at: str = ""


def keys_path(settings: Settings) -> Path:
    """The key file of this installation."""
    return Path(settings.server.keys_file or settings.state_dir / "keys.json").expanduser()


class KeyFile:
    """The file behind `belljar key`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Key]:
        """All keys, oldest first.

        Raises:
            InvalidSettings: the file cannot be read or is not a key file.
        """
        try:
            tree = json.loads(self.path.read_text("utf-8"))
            if tree["format"] != _FORMAT:
                raise ValueError(f"format {tree['format']}")
            return [Key(**each) for each in tree["keys"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidSettings(f"cannot read the keys in {self.path}: {error}") from error

    def create(self, key: Key) -> str:
        """Store a new key with the name and grants of `key`; return its text, which is not stored.

        Raises:
            CallerError: the name is taken or invalid, or a ceiling is out of range.
        """
        _check(key)
        key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        text = f"bj_{key_id}_{secret}"
        made = {"id": key_id, "digest": _digest(text), "created_at": datetime.now(UTC).isoformat(timespec="seconds")}
        with self._locked():
            keys = self.read()
            if any(each.name == key.name for each in keys):
                raise CallerError(f"a key named {key.name!r} exists already; revoke it or choose another name")
            self._write([*keys, Key(**{**asdict(key), **made})])
        return text

    def revoke(self, name: str) -> None:
        """Remove a key.

        Raises:
            CallerError: no key has that name.
        """
        with self._locked():
            keys = self.read()
            if all(each.name != name for each in keys):
                raise CallerError(f"no key is named {name!r}; `belljar key list` shows them")
            self._write([each for each in keys if each.name != name])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CallerError(f"cannot write to {self.path.parent}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, keys: list[Key]) -> None:
        temporary = self.path.with_name(f".{self.path.name}-{secrets.token_hex(8)}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"format": _FORMAT, "keys": [asdict(key) for key in keys]}, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)


class KeyRing:
    """Finds keys by their text; follows the file as it changes."""

    def __init__(self, file: KeyFile, operator_key: str = "") -> None:
        """Raises InvalidSettings if the file exists and cannot be read."""
        self._file = file
        self._operator_digest = _digest(operator_key) if operator_key else ""
        self._operator = Key(name=OPERATOR, network=True, tools=True)
        self._seen: tuple[int, int, int] | None = None
        self._by_id: dict[str, Key] = {}
        self._look_again_at = 0.0
        self._look()

    @property
    def is_empty(self) -> bool:
        """Whether no key exists."""
        self._look()
        return not self._by_id and not self._operator_digest

    def find(self, text: str) -> Key | None:
        """The key with that text, if it exists. A key created a moment ago is found, too."""
        self._look()
        found = self._compare(text)
        return self._compare(text) if found is None and self._look(at_once=True) else found

    def _compare(self, text: str) -> Key | None:
        digest = _digest(text)
        parts = text.split("_", 2)
        candidate = self._by_id.get(parts[1]) if len(parts) == 3 and parts[0] == "bj" else None
        is_candidates = hmac.compare_digest(digest, candidate.digest if candidate else _NO_KEY)
        is_operators = hmac.compare_digest(digest, self._operator_digest or _NO_KEY)
        if candidate and is_candidates:
            return candidate
        return self._operator if self._operator_digest and is_operators else None

    def _look(self, *, at_once: bool = False) -> bool:
        """Read the file if it has changed; return whether it has."""
        moment = time.monotonic()
        if moment < self._look_again_at and not at_once:
            return False
        self._look_again_at = moment + _LOOK_SECONDS
        try:
            status = self._file.path.stat()
            now = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            now = (0, 0, 0)
        if now == self._seen:
            return False
        is_first = self._seen is None
        try:
            self._by_id = {key.id: key for key in self._file.read()}
        except InvalidSettings:
            if is_first:
                raise
            self._by_id = {}  # an unreadable file admits no caller
        self._seen = now
        return True


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _check(key: Key) -> None:
    if not _NAME.fullmatch(key.name) or key.name == OPERATOR:
        raise CallerError(
            f"key name {key.name!r} must be 1 to 64 of A-Z a-z 0-9 . _ -, start with a letter or digit and not be "
            f"{OPERATOR!r}"
        )
    for label in ("max_concurrent", "requests_per_minute", "max_sessions"):
        value: Any = getattr(key, label)
        if value is not None and value < 1:
            raise CallerError(f"{label} must be at least 1")
    for label, value in key.limits.items():
        if label not in LIMIT_UNITS:
            raise CallerError(f"unknown limit {label!r}; choose from {', '.join(LIMIT_UNITS)}")
        if not 0 < value < float("inf"):
            raise CallerError(f"{label} must be a finite number above 0")
