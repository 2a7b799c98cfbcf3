"""What runs inside vLLM's processes, in vLLM's own environment: the launcher, and the plug-in that receives versions."""
