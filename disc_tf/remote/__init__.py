"""The client's side of the optimization service, and what both sides share: see docs/service.md."""
