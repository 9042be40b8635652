"""Clients that verify the certificates which the operator issues for the Broker `demo`."""

from __future__ import annotations

from kind.space import Space

CA_PATH = "/tmp/ca.crt"
TLS = {"tls_ca": CA_PATH, "tls_server_name": "demo-namesrv"}
"""Options of the programs in e2e/kind_client."""


def distribute_ca(space: Space, *pods: str) -> None:
    """Write the CA certificates of the Broker to CA_PATH in each pod."""
    ca = space.get("configmap", "demo-ca")["data"]["ca.crt"]
    for pod in pods:
        space.kubectl("exec", "-i", pod, "--", "sh", "-c", f"cat > {CA_PATH}", input=ca)


def answers_plaintext(space: Space, pod: str) -> bool:
    """Return True if a broker responds to GET_BROKER_RUNTIME_INFO (28) from its own machine without TLS."""
    program = (
        "import json,socket,struct\n"
        "header=json.dumps({'code':28,'flag':0,'language':'JAVA','opaque':1,'version':399}).encode()\n"
        "with socket.create_connection(('127.0.0.1',10911),timeout=10) as s:\n"
        "  s.sendall(struct.pack('>II',4+len(header),len(header))+header)\n"
        "  try: print(len(s.recv(16)))\n"
        "  except ConnectionResetError: print(0)\n"
    )
    return str(space.kubectl("exec", pod, "--", "python3.11", "-c", program).stdout).strip() != "0"
