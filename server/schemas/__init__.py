"""Request bodies as strict pydantic models: unknown and unsupported fields are refused."""
