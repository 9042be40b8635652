"""What tests of the broker, of its clients and of its commands share; not part of the distribution."""
