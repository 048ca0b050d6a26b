"""The echo server and client of the library websockets. See websocket.rs.

websocket.py serve PORT             echoes every message
websocket.py try URL [CA_FILE]      sends messages of every kind and checks what comes back
"""

import asyncio
import os
import ssl
import sys

import websockets

CONNECTIONS = 4
# Lengths around those at which the length field of a frame grows, and more than any buffer on the way.
LENGTHS = [0, 1, 125, 126, 65_535, 65_536, 1_000_000]
CLOSE_CODE, CLOSE_REASON = 4001, "done"


async def echo(connection):
    try:
        async for message in connection:
            await connection.send(message)
    except websockets.exceptions.ConnectionClosedError:
        pass  # the client closed with a code of its own


async def serve(port):
    async with websockets.serve(echo, "127.0.0.1", port, max_size=None):
        await asyncio.Future()


async def exchange(url, context, compression):
    async with websockets.connect(url, ssl=context, compression=compression, max_size=None, open_timeout=60) as connection:
        for length in LENGTHS:
            for message in (os.urandom(length), "\u00e4" * length):
                await connection.send(message)
                assert await connection.recv() == message, f"other bytes of {length}"
        await connection.send(["in ", "three ", "fragments"])
        assert await connection.recv() == "in three fragments"
        # Messages on their way in both directions at once.
        many = [os.urandom(1000) for _ in range(200)]
        sending = asyncio.ensure_future(asyncio.gather(*(connection.send(message) for message in many)))
        assert [await connection.recv() for _ in many] == many, "other bytes, or another order"
        await sending
        await asyncio.wait_for(await connection.ping(b"ping"), 60)
        await connection.close(CLOSE_CODE, CLOSE_REASON)
    assert (connection.close_code, connection.close_reason) == (CLOSE_CODE, CLOSE_REASON), connection.close_code


async def attempt(url, ca_file):
    context = ssl.create_default_context(cafile=ca_file) if ca_file else None
    await asyncio.gather(*(exchange(url, context, "deflate" if i % 2 else None) for i in range(CONNECTIONS)))


role, where, *rest = sys.argv[1:]
asyncio.run(serve(int(where)) if role == "serve" else attempt(where, *(rest or [None])))
