"""The TLS certificate of a server, and the end of its validity."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NoReturn

import anyio
import anyio.to_thread

CERTIFICATE_SECONDS: Final = 600.0
"""Seconds between two looks at the file, which may be replaced."""


def certificate_end(path: str) -> datetime | None:
    """The end of the validity of a certificate in a PEM file; None without a path, and for a bad file."""
    if not path:
        return None
    from cryptography import x509  # 40 ms and 7 MiB: only with a certificate

    try:
        with open(path, "rb") as file:
            return x509.load_pem_x509_certificates(file.read())[0].not_valid_after_utc
    except (OSError, ValueError):  # where OpenSSL takes it, the file has no fault
        return None


class ServerCertificate:
    """The certificate in a PEM file; an empty path means no certificate. `end` is the end of its validity,
    None without a certificate, before the first look, and for an unreadable file."""

    def __init__(self, path: str = "", end: datetime | None = None) -> None:
        self._path = path
        self.end = end

    @property
    def end_seconds(self) -> float:
        """The end in seconds since 1970; 0 when unknown."""
        return 0.0 if self.end is None else self.end.timestamp()

    @property
    def end_text(self) -> str:
        """The end as ISO 8601; empty when unknown."""
        return "" if self.end is None else self.end.isoformat()

    async def watch(self) -> NoReturn:
        """Read the file now and every ten minutes, in a thread, until cancelled."""
        while True:
            self.end = await anyio.to_thread.run_sync(certificate_end, self._path)
            await anyio.sleep(CERTIFICATE_SECONDS)
