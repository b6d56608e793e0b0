"""Front doors for other frameworks: a module each, which needs an extra of its own. Nothing else imports them."""
