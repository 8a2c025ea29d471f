"""What decoding produces, and the interfaces and JSON parsing that the dialects and the decoder share."""
