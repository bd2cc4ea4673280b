"""What the project's own measurements and pictures are made with; run from the project's folder."""
