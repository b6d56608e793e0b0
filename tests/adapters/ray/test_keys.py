"""The keys of a replay's bridges: who has them gets in, and nobody else."""

import pickle
import ssl

import numpy as np
import pytest
from harness.packages import need

need("ray")
need("cryptography")

from echo_shm import EchoShmError, Server, TcpClient, TcpTransport, WireError  # noqa: E402
from echo_shm.adapters.ray.keys import Keys  # noqa: E402

EXAMPLE = np.zeros((), np.int64)


@pytest.fixture(scope="module")
def keys():
    """An owner's."""
    return Keys.make()


@pytest.fixture
def server(keys):
    """One whose process got the keys from their owner."""
    given = pickle.loads(pickle.dumps(keys))
    with Server(EXAMPLE, 1, transport=TcpTransport(0, authkey=given.authkey, tls=given.pem())) as made:
        made.start()
        yield made


def test_their_owner_gets_in(keys, server):
    """A process with the public part connects by address: the certificate names no host."""
    given = pickle.loads(pickle.dumps(keys.public()))
    with TcpClient("127.0.0.1", server.port, EXAMPLE, authkey=given.authkey, tls=given.client_context()) as client:
        client.send(np.int64(7))
        assert server.sample(timeout=20).batch.tolist() == [7]


def test_another_certificate_is_refused(keys, server):
    """Even by one who knows the key: it talks to no bridge but this replay's."""
    with pytest.raises(ssl.SSLCertVerificationError):
        TcpClient("127.0.0.1", server.port, EXAMPLE, authkey=keys.authkey, tls=Keys.make().client_context())


def test_a_certificate_vouches_for_no_other(keys):
    """What its private key signs is not accepted."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    issuer, own = serialization.load_pem_private_key(keys.private_key, None), ec.generate_private_key(ec.SECP256R1())
    first = x509.load_pem_x509_certificate(keys.certificate)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "another")])
    second = x509.CertificateBuilder(
        first.subject, name, own.public_key(), 1, first.not_valid_before_utc, first.not_valid_after_utc
    ).sign(issuer, hashes.SHA256())
    pem = serialization.Encoding.PEM
    other = Keys(
        keys.authkey,
        second.public_bytes(pem),
        own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    with Server(EXAMPLE, 1, transport=TcpTransport(0, authkey=keys.authkey, tls=other.pem())) as made:
        made.start()
        with pytest.raises(ssl.SSLCertVerificationError):
            TcpClient("127.0.0.1", made.port, EXAMPLE, authkey=keys.authkey, tls=keys.client_context())


def test_another_key_is_refused(keys, server):
    """Even by one who has the certificate."""
    with pytest.raises(WireError):
        TcpClient("127.0.0.1", server.port, EXAMPLE, authkey=b"?" * 32, tls=keys.client_context())


def test_the_private_key_stays(keys):
    """The public part has it nowhere, no message shows a secret, and no bridge can be made of it."""
    public = keys.public()
    secret = keys.private_key.splitlines()[1]
    assert secret not in pickle.dumps(public)
    assert secret in pickle.dumps(keys)
    for one in (keys, public):
        assert repr(one) == "Keys()"
    with pytest.raises(EchoShmError, match="public part"):
        public.pem()
