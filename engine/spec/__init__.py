"""Speculation: token trees, the drafters that grow them, and the walk that verifies them."""
