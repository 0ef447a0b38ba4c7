"""Encryption with Airflow's Fernet key, for content that not everybody with access to Variables should see.

Without a Fernet key, Airflow encrypts nothing, not even connections, and neither does this module.
"""

from __future__ import annotations

from contextlib import suppress

from airflow.models.crypto import get_fernet
from cryptography.fernet import InvalidToken

from airflow_crew_provider.compat.version import masks_variables

ENCRYPTED = "gAAAA"  # every Fernet token begins with this, and no JSON does
ANOTHER_KEY = "[core] fernet_key in this process differs from the one that the inbox encrypted with; they must match"


class NotDecrypted(Exception):
    """A value cannot be decrypted in this process."""


def seal(text: str) -> str:
    """Encrypt a string with Airflow's Fernet key."""
    return get_fernet().encrypt(text.encode()).decode()


def unseal(text: str | None) -> str:
    """Decrypt a string from `seal`; return an unencrypted string unchanged.

    :param text: None if Airflow could not decrypt the Variable
    :raises NotDecrypted: the Fernet key is different or missing
    """
    if text is None:
        raise NotDecrypted(ANOTHER_KEY)
    if not text.startswith(ENCRYPTED):
        return text
    with suppress(InvalidToken, UnicodeDecodeError):
        plain: str = get_fernet().decrypt(text.encode()).decode()
        if not plain.startswith(ENCRYPTED):  # without a key, Airflow returns its argument
            return plain
    raise NotDecrypted(ANOTHER_KEY)


def key_to_store(key: str) -> str:
    """Return a key as a Variable may hold it; on Airflow 2, everybody who may read Variables sees its value."""
    return key if masks_variables() else seal(key)


def stored_key(text: str) -> str:
    """Return the key that `key_to_store` has been given.

    :raises NotDecrypted: on Airflow 2, the Fernet key is different or missing
    """
    return text if masks_variables() else unseal(text)
