"""The validator: replays claims with one teacher-forced pass and reports signed evidence."""
