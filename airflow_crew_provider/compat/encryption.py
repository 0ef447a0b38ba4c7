"""Airflow's own encryption, for what stands in a Variable and is not meant for everybody who may read Variables.

Without a Fernet key Airflow encrypts nothing, its connections neither, and nor does this.
"""

from __future__ import annotations

from contextlib import suppress

from airflow.models.crypto import get_fernet
from cryptography.fernet import InvalidToken

ENCRYPTED = "gAAAA"  # how Fernet's tokens begin; no JSON does
ANOTHER_KEY = "[core] fernet_key of this process is not the one by which the inbox encrypted; they must agree"


class NotDecrypted(Exception):
    """A value cannot be decrypted in this process."""


def seal(text: str) -> str:
    """Encrypt a string with Airflow's Fernet key."""
    return get_fernet().encrypt(text.encode()).decode()


def unseal(text: str | None) -> str:
    """Return what `seal` was given; a string that is not encrypted is returned as it is.

    :param text: None where Airflow could not decrypt its own encryption of a Variable
    :raises NotDecrypted: with another Fernet key, or with none
    """
    if text is None:
        raise NotDecrypted(ANOTHER_KEY)
    if not text.startswith(ENCRYPTED):
        return text
    with suppress(InvalidToken, UnicodeDecodeError):
        plain: str = get_fernet().decrypt(text.encode()).decode()
        if not plain.startswith(ENCRYPTED):  # without a key, Airflow returns what it was given
            return plain
    raise NotDecrypted(ANOTHER_KEY)
