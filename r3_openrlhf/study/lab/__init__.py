"""Learning experiments in minutes on two cores: the core modules in one process, without Ray, vLLM and DeepSpeed."""
