"""Objects with accounts: of administrators and clients, of Users, and of brokers at NameServers."""
