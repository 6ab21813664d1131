"""All SQL: the database behind typed engine values."""
