"""Who somebody is by certificate: a manager with TLS, real agents and clients, a CA as an administrator makes one."""

import http.client
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.client.manager_client import ManagerAddress, ManagerClient, find_manager, variable
from farside.errors import FarsideError
from farside.scheduler.manager.auth.certificate import named_in
from farside.scheduler.manager.auth.token_file import Role, add_token
from farside.tls import TlsFiles, client_tls
from tests.agent.process import agent, status, write_config
from tests.live.manager import Manager, running_manager
from tests.support.certificates import SERVER, Authority, Made
from tests.support.waiting import DEADLINE_S, until


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def manager(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    own = authority.make("manager", says=SERVER)
    with running_manager(
        tmp_path_factory.mktemp("m"), tls_cert=own.cert, tls_key=own.key, tls_client_ca=authority.cert
    ) as made:
        yield made


def client_of(manager: Manager, authority: Authority, made: Made | None = None, token: str = "") -> ManagerClient:
    tls = TlsFiles(ca=authority.cert, name=variable)
    if made is not None:
        tls = TlsFiles(ca=authority.cert, cert=made.cert, key=made.key, name=variable)
    return ManagerClient(ManagerAddress(endpoint=f"https://localhost:{manager.port}", token=token, tls=tls))


def agent_settings(manager: Manager, authority: Authority, made: Made, folder: Path, **more: str) -> Path:
    return write_config(
        folder, f"wss://localhost:{manager.port}", ca_file=str(authority.cert), tls_cert=str(made.cert),
        tls_key=str(made.key), token_file="", **more,
    )  # fmt: skip


@pytest.mark.parametrize("role", ["user", "operator"])
def test_a_person_is_whom_the_certificate_is_for(role: str, manager: Manager, authority: Authority) -> None:
    made = authority.make(f"{role}-ann", says=f"URI:farside://{role}/ann")

    with client_of(manager, authority, made) as client:
        assert client.get("whoami") == {"name": "ann", "role": role, "proved": False}
        if role == "operator":
            assert client.get("audit")["entries"] is not None


def test_a_certificate_says_nothing_of_the_uid_so_nobody_submits_by_it(manager: Manager, authority: Authority) -> None:
    made = authority.make("submitter", says="URI:farside://operator/ann")

    with client_of(manager, authority, made) as client, pytest.raises(FarsideError, match="does not prove"):
        client.post("jobs", body={"argv": ["true"]})


def test_an_agent_speaks_for_the_node_of_its_certificate_without_a_token(
    manager: Manager, authority: Authority, tmp_path: Path
) -> None:
    """[H3] The CA may have other uses, so an operator accepts the name first."""
    made = authority.make("n1", says="URI:farside://node/n1")

    with agent(agent_settings(manager, authority, made, tmp_path)):
        refusal = "n1 is not known here: `farside node accept n1` lets it in"
        until(lambda: refusal in str(status(tmp_path).get("problem")), what="a node that waits", deadline_s=60)
        (row,) = manager.get("admissions")["admissions"]
        assert (row["name"], row["state"]) == ("n1", "waits")
        manager.post("admissions", "n1", "accept")
        until(lambda: bool(status(tmp_path).get("connected")), what="a connected agent", deadline_s=60)

        assert manager.get("nodes", "n1")["address"] == "127.0.0.1"
        assert manager.get("nodes", "n1")["state"] == "idle"


def test_an_agent_does_not_speak_for_another_node_and_says_why(
    manager: Manager, authority: Authority, tmp_path: Path
) -> None:
    made = authority.make("n2", says="URI:farside://node/n2")

    with agent(agent_settings(manager, authority, made, tmp_path, node="n3")):
        until(
            lambda: "node n2 may not speak for node n3" in str(status(tmp_path).get("problem")),
            what="a refused agent",
            deadline_s=60,
        )


def test_an_agent_with_an_expired_certificate_says_what_to_do(
    manager: Manager, authority: Authority, tmp_path: Path
) -> None:
    made = authority.make("n4", says="URI:farside://node/n4", days=0)

    with agent(agent_settings(manager, authority, made, tmp_path, node="n4")):
        until(
            lambda: "issued by commonName=ca) has expired; have it renewed" in str(status(tmp_path).get("problem")),
            what="an agent that says so",
            deadline_s=60,
        )


def test_a_certificate_of_another_ca_is_named_on_either_side_of_every_door_of_the_manager(
    manager: Manager, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    foreign = other.make("n5", says="URI:farside://node/n5")
    unknown = "does not know who signed our certificate"
    names = "(commonName=n5, issued by commonName=other)"

    with client_of(manager, authority, foreign) as client, pytest.raises(FarsideError) as refused:
        client.get("whoami")
    with client_of(manager, other) as client, pytest.raises(FarsideError) as not_ours:
        client.get("whoami")
    with agent(agent_settings(manager, authority, foreign, tmp_path, node="n5")):
        until(lambda: unknown in str(status(tmp_path).get("problem")), what="a refused agent", deadline_s=60)
        told = status(tmp_path)["problem"]
    (tmp_path / "b").mkdir()
    with agent(agent_settings(manager, other, foreign, tmp_path / "b", node="n5")):
        until(
            lambda: "nobody who is known here" in str(status(tmp_path / "b").get("problem")), what="it", deadline_s=60
        )
        doubted = status(tmp_path / "b")["problem"]

    where = f"localhost:{manager.port}: "
    assert str(refused.value) == (
        f"https://{where}it {unknown} {foreign.cert} {names}; its CA must be in the manager's tls_client_ca"
    )
    assert told == str(refused.value).replace("https", "wss")
    assert str(not_ours.value) == (
        f"https://{where}its certificate (commonName=manager, issued by commonName=ca) was signed by nobody who is "
        f"known here; name the certificate of its CA: FARSIDE_CA_FILE, now {other.cert}"
    )
    assert doubted == str(not_ours.value).replace("https", "wss").replace("FARSIDE_CA_FILE", "ca_file")
    assert 'certificate="commonName=n5, issued by commonName=other"' in manager.log()


def test_a_token_still_says_who_is_who(manager: Manager, authority: Authority) -> None:
    token = add_token(manager.tokens, "carl", Role.OPERATOR)
    made = authority.make("user-bob", says="URI:farside://user/bob")

    with client_of(manager, authority, token=token) as alone, client_of(manager, authority, made, token) as beside:
        assert alone.get("whoami")["name"] == beside.get("whoami")["name"] == "carl"


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("DNS:n1", "no token"),
        ("URI:https://n1.example/", "no token"),
        ("URI:farside://king/ann", "is not of the kind farside://node/NAME"),
        ("URI:farside://user/", "is not of the kind"),
        ("URI:farside://user/ann,URI:farside://operator/ann", "more than once"),
    ],
)
def test_who_has_a_certificate_that_says_nothing_of_use_is_nobody(
    says: str, told: str, manager: Manager, authority: Authority
) -> None:
    made = authority.make("odd", says=says)

    with client_of(manager, authority, made) as client, pytest.raises(FarsideError, match=told):
        client.get("jobs")


def test_another_sites_page_does_not_use_a_browsers_certificate(manager: Manager, authority: Authority) -> None:
    made = authority.make("operator-eve", says="URI:farside://operator/eve")
    context = client_tls(TlsFiles(ca=authority.cert, cert=made.cert, key=made.key))
    connection = http.client.HTTPSConnection("localhost", manager.port, context=context, timeout=DEADLINE_S)

    connection.request("GET", "/v1/jobs", headers={"Sec-Fetch-Site": "cross-site"})

    assert connection.getresponse().status == 403
    connection.close()


def test_where_certificates_are_required_a_token_alone_does_not_come_in(authority: Authority, tmp_path: Path) -> None:
    own = authority.make("strict", says=SERVER)
    made = authority.make("operator-dan", says="URI:farside://operator/dan")
    with running_manager(
        tmp_path, tls_cert=own.cert, tls_key=own.key, tls_client_ca=authority.cert, tls_client_required="true"
    ) as manager:
        token = add_token(manager.tokens, "carl", Role.OPERATOR)

        with client_of(manager, authority, made) as client:
            assert client.get("whoami")["name"] == "dan"
        told = "wants a certificate, and was shown none; name yours: FARSIDE_TLS_CERT and FARSIDE_TLS_KEY"
        with client_of(manager, authority, token=token) as client, pytest.raises(FarsideError, match=told):
            client.get("whoami")
        assert manager.get("health")["generation"] == 1  # the unix socket asks nobody for one
        until(lambda: "a TLS handshake failed" in manager.log(), what="the line about it")


def test_the_command_line_takes_its_certificate_from_the_environment(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = authority.make("user-fay", says="URI:farside://user/fay")
    monkeypatch.setenv("FARSIDE_MANAGER", "https://localhost:1")
    monkeypatch.setenv("FARSIDE_CA_FILE", str(authority.cert))
    monkeypatch.setenv("FARSIDE_TLS_CERT", str(made.cert))

    with pytest.raises(FarsideError, match="FARSIDE_TLS_KEY: is not set, and FARSIDE_TLS_CERT is; set both"):
        find_manager()
    monkeypatch.setenv("FARSIDE_TLS_KEY", str(tmp_path / "none.key"))
    with pytest.raises(FarsideError, match=r"FARSIDE_TLS_KEY .*/none.key: No such file"):
        ManagerClient(find_manager())
    monkeypatch.setenv("FARSIDE_TLS_KEY", str(made.key))
    with pytest.raises(FarsideError, match="no manager answers there"):
        ManagerClient(find_manager()).get("whoami")


def test_plain_http_at_a_tls_port_is_told_what_to_write(manager: Manager) -> None:
    plain = ManagerClient(ManagerAddress(endpoint=f"http://localhost:{manager.port}"))

    with plain, pytest.raises(FarsideError, match="if it has a certificate, write https://"):
        plain.get("whoami")


@given(st.text(max_size=40), st.lists(st.tuples(st.sampled_from(["URI", "DNS"]), st.text(max_size=30)), max_size=3))
def test_whatever_a_certificate_says_it_names_somebody_wholly_or_is_refused_in_one_line(
    text: str, names: list[tuple[str, str]]
) -> None:
    for uri in (text, f"farside:{text}", f"farside://{text}", f"farside://user/{text}"):
        found, refusal = read({"subjectAltName": (*names, ("URI", uri))})

        assert found is None or (found[0] in set(Role) and found[1] and found[1].isprintable())
        assert refusal.isprintable()


def read(certificate: Mapping[str, object]) -> tuple[tuple[str, str] | None, str]:
    try:
        return named_in(certificate), ""
    except ValueError as error:
        return None, str(error)
