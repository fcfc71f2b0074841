"""Many engines behind one address, each in a Ray Serve replica. Needs the extra `ray`; nothing
outside this folder imports it, so the server runs without Ray."""
