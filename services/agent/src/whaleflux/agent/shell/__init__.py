"""What the agent does: processes, files, and talk."""
