"""Benign or malignant? A model that clinics train together."""
