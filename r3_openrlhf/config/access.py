"""Access to a server: processes of this machine, or callers with a token."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import os
import re
import secrets
from pathlib import Path

from r3_openrlhf.method.errors import ConfigError, without_secrets

MIN_TOKEN_CHARS = 16
# In a variable's name, in any case
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|AUTH|CREDENTIAL|COOKIE|LOGIN", re.IGNORECASE)
_TOKEN = re.compile(rf"[!-~]{{{MIN_TOKEN_CHARS},}}")


def is_secret(name: str, value: str) -> bool:
    """Tell whether a variable's name suggests a secret, or its value is a URL with credentials."""
    return bool(_SECRET.search(name)) or without_secrets(value) != value


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach the address. The only name that counts is "localhost"."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_this_machine(host_header: bytes) -> bool:
    """Tell whether a request names a loopback address as its Host. A page of another site can
    make its own name point to 127.0.0.1, and its requests carry that name."""
    host = host_header.decode("latin-1")
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    return is_loopback(name.strip("[]"))


def new_token() -> str:
    """Make a token for one start of a server, which it prints."""
    return secrets.token_urlsafe(24)


def read_token(file: str | None, variable: str) -> str | None:
    """Read the token in `file`, else in the variable, or None. ConfigError: unreadable."""
    if file is None:
        return (os.environ.get(variable) or "").rstrip("\r\n") or None
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"--token-file: {path} does not exist")
    try:
        return path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"--token-file: {path} is not UTF-8 text") from error
    except OSError as error:
        raise ConfigError(f"--token-file: {path} cannot be read: {error.strerror}") from error


def check_access(host: str, token: str | None, *, variable: str, name: str) -> None:
    """ConfigError: an address that others can reach without a token, or a token that no header can
    carry.

    `variable` may hold the token; `name`: what the token is called in the sentence."""
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"--host is {host}, which others can reach: set {variable} (or --token-file) to a token of at"
            f" least {MIN_TOKEN_CHARS} characters that callers must show, or use --host 127.0.0.1"
        )
    if token is not None and not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"the {name} needs at least {MIN_TOKEN_CHARS} printable ASCII characters without blanks or line ends: "
            "a header cannot carry any other token"
        )


def credentials(header: bytes) -> tuple[bytes, bytes]:
    """Return the credentials of an authorization header: of bearer tokens the password, of others none."""
    scheme, _, value = header.partition(b" ")
    if scheme.lower() == b"bearer":
        return b"", value.strip()
    if scheme.lower() != b"basic":
        return b"", b""
    try:
        user, _, password = base64.b64decode(value, validate=True).partition(b":")
    except binascii.Error:
        return b"", b""
    return user, password.strip()


def shows_token(header: bytes, token: str) -> bool:
    """Bearer TOKEN, or basic authentication with the token as password, which fits into a URL."""
    _, password = credentials(header)
    return hmac.compare_digest(password, token.encode())
