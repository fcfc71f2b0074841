"""Text: tokenizer, incremental detokenizer, stop strings. No torch of its own."""
