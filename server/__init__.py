"""The HTTP front: OpenAI's contract over an engine client. It never imports torch."""
