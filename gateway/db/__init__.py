"""Durable state: tables, transitions, queries and blobs."""
