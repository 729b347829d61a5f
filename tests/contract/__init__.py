"""One suite for every store: what `ucfuse.store.api` promises, sentence by sentence."""
