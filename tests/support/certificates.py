"""A certification authority for tests, by the openssl that an administrator has; each call takes some milliseconds."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
SERVER = "DNS:localhost,IP:127.0.0.1"
_SETTINGS = """
[ca]
default_ca = own
[own]
database = {folder}/index.txt
crlnumber = {folder}/crlnumber
default_md = sha256
default_crl_days = 30
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """One CA, whose files lie in a folder of its own."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder / name
        self._folder.mkdir(parents=True)
        self.cert, self._key = self._folder / "ca.pem", self._folder / "ca.key"
        self._openssl(
            "req", "-x509", *CURVE, "-nodes", "-keyout", self._key, "-out", self.cert, "-days", "30",
            "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def make(self, name: str, *, says: str = "", days: int = 30) -> Made:
        """A certificate that was signed by this CA; ``says`` is its subjectAltName; of 0 days it has expired."""
        made = Made(cert=self._folder / f"{name}.pem", key=self._folder / f"{name}.key")
        request = self._folder / f"{name}.csr"
        told = ("-addext", f"subjectAltName={says}") if says else ()
        self._openssl(
            "req", "-new", *CURVE, "-nodes", "-keyout", made.key, "-out", request, "-subj", f"/CN={name}", *told
        )
        self._openssl(
            "x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self._key, "-days", days,
            "-copy_extensions", "copy", "-out", made.cert,
        )  # fmt: skip
        return made

    def revoking(self, *revoked: Made, issued: str = "") -> Path:
        """A file of this CA's certificate with a list of those that count no more, of ``issued`` (YYYYMMDDHHMMSSZ)."""
        settings, listed = self._folder / "ca.cnf", self._folder / "crl.pem"
        settings.write_text(_SETTINGS.format(folder=self._folder))
        (self._folder / "index.txt").write_text("")
        (self._folder / "crlnumber").write_text("01\n")
        signing = ("ca", "-config", settings, "-cert", self.cert, "-keyfile", self._key)
        for one in revoked:
            self._openssl(*signing, "-revoke", one.cert)
        when = ("-crl_lastupdate", issued, "-crl_nextupdate", "20991231235959Z") if issued else ()
        self._openssl(*signing, "-gencrl", *when, "-out", listed)
        both = self._folder / "ca-and-crl.pem"
        both.write_bytes(self.cert.read_bytes() + listed.read_bytes())
        return both

    def _openssl(self, *arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
