"""The engine: token trees in, tokens out. It never imports the server, a web framework or asyncio."""

__version__ = "0.1.0"
