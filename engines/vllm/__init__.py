"""vLLM servers: started, asked, and brought to the versions that their slots are assigned. Torch only in `server`."""
