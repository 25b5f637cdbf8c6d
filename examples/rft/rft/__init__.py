"""A small but complete reinforcement fine-tuning of a language policy, in numpy alone."""
