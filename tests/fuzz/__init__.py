"""Coverage-guided fuzzing, outside CI: `python -m tests.fuzz.decode` (needs atheris in the environment)."""
