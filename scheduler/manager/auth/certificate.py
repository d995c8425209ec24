"""The user or node that a client's certificate names.

A name of the certificate says it (subjectAltName, URI): ``farside://node/n1``, ``farside://user/ann``,
``farside://operator/carl``. Not its subject: a CA of the house signs certificates for much else, and a mail certificate
of somebody called n1 must not make him a node.
"""

import re
from collections.abc import Mapping
from urllib.parse import unquote

_WHO = re.compile(r"farside://(?P<role>node|user|operator)/(?P<name>[^/?#]+)")


def named_in(certificate: Mapping[str, object]) -> tuple[str, str] | None:
    """Role and name in what `ssl.SSLSocket.getpeercert` returns for a verified certificate; None: it has neither.

    Raises:
        ValueError: It says two things, or what it says is none; the text tells which.
    """
    names = certificate.get("subjectAltName", ())
    assert isinstance(names, tuple)
    found = [text for kind, text in names if kind == "URI" and text.startswith("farside:")]
    if not found:
        return None
    if len(found) > 1:
        raise ValueError(f"your certificate says who you are more than once: {', '.join(found)!a:.200}")
    told = _WHO.fullmatch(found[0])
    name = "" if told is None else unquote(told["name"])
    # Percent-decoding may have brought line breaks into the name, which would forge lines of logs.
    if told is None or not name.isprintable():
        wanted = "farside://node/NAME, user/NAME or operator/NAME"
        raise ValueError(f"your certificate is for {found[0]!a:.200}, which is not of the kind {wanted}")
    return told["role"], name
