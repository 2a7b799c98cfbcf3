"""Our own engine, as the rest sees it; the process itself is `services/engine`."""
