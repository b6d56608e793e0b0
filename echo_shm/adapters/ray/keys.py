"""What the bridges of a replay, or of a stream, prove who they are with: a key, and a certificate.

Its owner makes them, and Ray hands them out with the plans. They live in the memory of processes, and end with them:
nothing of them is written to a disk.
"""

import datetime
import secrets
import ssl
from dataclasses import dataclass, field, replace

from echo_shm.errors import EchoShmError
from echo_shm.missing import needs
from echo_shm.net import pem

#: Bytes of a key.
_KEY = 32

#: A certificate is valid for as long as anybody has it: nodes' clocks may differ. RFC 5280, 4.1.2.5, has this end for
#: certificates that have none.
_BEGIN, _END = datetime.datetime(2000, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59)


@dataclass(frozen=True)
class Keys:
    """The key and the certificate of one replay or stream. They pickle.

    A bridge and its client prove to each other that they know ``authkey``, and TLS encrypts what they send. A client
    trusts exactly this certificate: who has its private key is a bridge of this replay. Names of hosts are not looked
    at, because nodes join after the certificate is made, and nobody else gets a certificate that a client accepts.

    Attributes:
        authkey: For ``TcpTransport(authkey=...)`` and its clients.
        certificate: Self-signed, as PEM.
        private_key: Of the certificate, as PEM. None in what :meth:`public` returns.

    """

    authkey: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    private_key: bytes | None = field(repr=False)

    @classmethod
    def make(cls) -> "Keys":
        """New ones.

        Raises:
            ModuleNotFoundError: ``cryptography`` is not installed.

        """
        with needs("adapters.ray", "cryptography", "cryptography"):
            from cryptography import x509
            from cryptography.hazmat.primitives import hashes, serialization
            from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "echo_shm")])
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), _BEGIN, _END)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)  # it vouches for no other
            .sign(key, hashes.SHA256())
        )
        return cls(
            secrets.token_bytes(_KEY),
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )

    def public(self) -> "Keys":
        """Those of a process that connects to bridges, and is none: without the private key."""
        return replace(self, private_key=None)

    def pem(self) -> bytes:
        """For ``TcpTransport(tls=...)``: the private key and the certificate.

        Raises:
            EchoShmError: The private key is not here.

        """
        if self.private_key is None:
            raise EchoShmError("these keys are the public part, for clients: a bridge needs what Keys.make() returned")
        return self.private_key + self.certificate

    def mutual_context(self, *, server_side: bool) -> ssl.SSLContext:
        """For a connection whose two sides both have the private key, and prove it to each other.

        Raises:
            EchoShmError: The private key is not here.

        """
        if server_side:
            context = pem.server_context(self.pem())
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=self.certificate.decode())
        else:
            context = self.client_context()
            pem.load(context, self.pem())
        return context

    def client_context(self) -> ssl.SSLContext:
        """For ``TcpClient(tls=...)`` and ``ReplayClient(tls=...)``."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.certificate.decode())
        return context
