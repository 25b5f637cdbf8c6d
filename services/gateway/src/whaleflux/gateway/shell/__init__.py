"""What the gateway touches: HTTP, streams, Valkey, stores."""
