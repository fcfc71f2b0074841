"""The engine: token trees in, tokens out. No server, web framework or asyncio in here."""

__version__ = "0.1.0"
