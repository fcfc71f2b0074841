"""What keeps a token from waiting in a socket buffer."""

import socket

from server.serving import bind


def test_small_writes_leave_at_once() -> None:
    """asyncio sets TCP_NODELAY on accepted sockets only where the listener names its protocol;
    without it a second small write waits for the client's delayed acknowledgement, some 40 ms."""
    listener = bind("127.0.0.1", 0)
    try:
        assert listener.proto == socket.IPPROTO_TCP
    finally:
        listener.close()
