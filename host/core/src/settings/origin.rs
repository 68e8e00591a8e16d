//! Whom a plugin may send HTTP requests to: one method and one origin, compared as parsed and never as text.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use thiserror::Error;

/// Letters of a host name at most, and of one part of it.
const HOST: usize = 253;
const PART: usize = 63;

/// One entry of the grant `http`: a method, or `*` for any, and an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRule {
    /// In capitals; None for any.
    method: Option<String>,
    origin: Origin,
}

/// Scheme, host and port in their one normal form: equal if and only if they name the same place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    secure: bool,
    host: Host,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    /// In small letters, without a dot at the end, and not a number.
    Name(String),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
}

/// Why a text is no entry of the grant `http`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{entry:?} is not a method and an origin like \"GET https://example.org\" or \"* http://127.0.0.1:8000\": {why}"
)]
pub struct HttpRuleError {
    entry: String,
    why: &'static str,
}

impl HttpRule {
    /// Whether a request with this method to this origin is one of those that the rule allows.
    pub fn allows(&self, method: &str, origin: &Origin) -> bool {
        // CONNECT does not ask the origin for something: it asks for a tunnel to somewhere else.
        method != "CONNECT"
            && self.method.as_deref().is_none_or(|own| own == method)
            && self.origin == *origin
    }
}

impl FromStr for HttpRule {
    type Err = HttpRuleError;

    fn from_str(entry: &str) -> Result<Self, HttpRuleError> {
        let error = |why| HttpRuleError { entry: entry.to_owned(), why };
        let (method, url) =
            entry.split_once(' ').ok_or_else(|| error("one space must stand between them"))?;
        let method = match method {
            "*" => None,
            "CONNECT" => return Err(error("CONNECT opens a tunnel to somewhere else")),
            method if !method.is_empty() && method.bytes().all(|b| b.is_ascii_uppercase()) => {
                Some(method.to_owned())
            }
            _ => return Err(error("the method is not a word in capitals")),
        };
        let (scheme, authority) = url
            .split_once("://")
            .ok_or_else(|| error("the origin does not begin with http:// or https://"))?;
        let origin = Origin::new(scheme, authority).map_err(error)?;
        Ok(Self { method, origin })
    }
}

impl Origin {
    /// The origin with this scheme, `http` or `https`, and `host` or `host:port`.
    ///
    /// # Errors
    /// Half a sentence about what is wrong. Everything is that different programs could read differently: user
    /// names, dots at the end, numbers that stand for addresses, letters beyond ASCII.
    pub fn new(scheme: &str, authority: &str) -> Result<Self, &'static str> {
        let secure = match scheme {
            s if s.eq_ignore_ascii_case("http") => false,
            s if s.eq_ignore_ascii_case("https") => true,
            _ => return Err("the scheme is neither http nor https"),
        };
        if authority.contains('@') {
            return Err("it names a user");
        }
        if authority.contains(['/', '?', '#', '\\']) {
            return Err("a path or a query follows the host");
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (address, port) =
                    rest.split_once(']').ok_or("the bracket of the address is not closed")?;
                let address = address.parse().map_err(|_| "the address in brackets is not IPv6")?;
                let port = match port {
                    "" => None,
                    port => Some(port.strip_prefix(':').ok_or("something follows the address")?),
                };
                (Host::V6(address), port)
            }
            None => {
                let (host, port) = match authority.split_once(':') {
                    Some((host, port)) => (host, Some(port)),
                    None => (authority, None),
                };
                (Host::new(host)?, port)
            }
        };
        let port = match port {
            None if secure => 443,
            None => 80,
            Some(digits) => port_of(digits).ok_or("the port is not a number from 1 to 65535")?,
        };
        Ok(Self { secure, host, port })
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        if self.secure { "https" } else { "http" }
    }
}

/// `scheme://host:port`, the port always written.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme())?;
        match &self.host {
            Host::Name(name) => write!(f, "{name}")?,
            Host::V4(address) => write!(f, "{address}")?,
            Host::V6(address) => write!(f, "[{address}]")?,
        }
        write!(f, ":{}", self.port)
    }
}

impl Host {
    fn new(host: &str) -> Result<Self, &'static str> {
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if host.is_empty() || !host.chars().all(good) {
            return Err("the host is not made of letters, digits, hyphens and dots");
        }
        if host.len() > HOST || host.split('.').any(|part| part.is_empty() || part.len() > PART) {
            return Err("a part of the host's name is empty or too long");
        }
        // Browsers and resolvers read 127.1, 0x7f.0.0.1 and 2130706433 as addresses.
        let last = host.rsplit('.').next().unwrap_or(host);
        let number = last.bytes().all(|b| b.is_ascii_digit())
            || last.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("0x"));
        if number {
            let address =
                host.parse().map_err(|_| "the host is a number, but not an address like 127.0.0.1")?;
            return Ok(Host::V4(address));
        }
        Ok(Host::Name(host.to_ascii_lowercase()))
    }
}

/// Digits only: the standard parser would take a sign.
fn port_of(digits: &str) -> Option<u16> {
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|port| *port != 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;

    fn rule(entry: &str) -> HttpRule {
        entry.parse().unwrap()
    }

    fn origin(scheme: &str, authority: &str) -> Origin {
        Origin::new(scheme, authority).unwrap()
    }

    #[test]
    fn a_rule_allows_its_method_and_origin_and_no_other() {
        let rule = rule("GET https://Example.org");
        assert!(rule.allows("GET", &origin("https", "example.org")));
        assert!(rule.allows("GET", &origin("HTTPS", "EXAMPLE.ORG:443")));
        for (method, scheme, authority) in [
            ("POST", "https", "example.org"),
            ("get", "https", "example.org"),
            ("GET", "http", "example.org"),
            ("GET", "http", "example.org:443"),
            ("GET", "https", "example.org:8443"),
            ("GET", "https", "www.example.org"),
            ("GET", "https", "example.org.evil.net"),
            ("GET", "https", "evil-example.org"),
        ] {
            assert!(!rule.allows(method, &origin(scheme, authority)), "{method} {scheme} {authority}");
        }
    }

    #[test]
    fn any_method_is_not_a_tunnel() {
        let rule = rule("* http://127.0.0.1:8000");
        let here = origin("http", "127.0.0.1:8000");
        assert!(rule.allows("DELETE", &here));
        assert!(!rule.allows("CONNECT", &here));
        assert!(!rule.allows("GET", &origin("http", "[::ffff:127.0.0.1]:8000")));
    }

    #[test]
    fn one_address_has_one_form() {
        assert_eq!(origin("http", "[0:0:0:0:0:0:0:1]:80"), origin("http", "[::1]"));
        assert_eq!(origin("https", "[::1]").to_string(), "https://[::1]:443");
        assert_eq!(origin("http", "a_b.Local").to_string(), "http://a_b.local:80");
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_no_origin() {
        for authority in [
            "",
            ".",
            "a..b",
            "example.org.",
            "user@example.org",
            "a:b@example.org",
            "example.org:",
            "a:0",
            "a:+1",
            "a:65536",
            "a:80:80",
            "127.1",
            "0x7f.1",
            "0x7F000001",
            "2130706433",
            "127.0.0.01",
            "1.2.3.4.5",
            "a.1",
            "[::1",
            "[::1]x",
            "[::1%eth0]",
            "[example.org]",
            "::1",
            "b\u{fc}cher.example",
            "xn",
            "example.org/x",
            "example.org?x",
            "example.org#x",
            "example.org\\x",
            "exa mple.org",
            "example.org\t",
            "%65xample.org",
        ] {
            // The one good name among them shows that the list tests the names.
            assert_eq!(Origin::new("http", authority).is_ok(), authority == "xn", "{authority:?}");
        }
        assert!(Origin::new("ftp", "example.org").is_err());
        assert!(Origin::new("http", &format!("{}.org", "a".repeat(64))).is_err());
        assert!(Origin::new("http", &"a.".repeat(150)).is_err());
    }

    #[test]
    fn a_bad_entry_is_told_with_an_example() {
        for (entry, why) in [
            ("https://example.org", "one space"),
            ("get https://example.org", "capitals"),
            ("CONNECT https://example.org", "tunnel"),
            ("GET example.org", "begin with http://"),
            ("GET https://example.org/", "path"),
            ("GET https://*.example.org", "letters"),
            ("GET  https://example.org", "scheme"),
        ] {
            let error = entry.parse::<HttpRule>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("GET https://example.org"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_parses_prints_and_parses_to_itself(text in "\\PC{0,40}") {
            let _ = text.parse::<HttpRule>();
            if let Ok(origin) = Origin::new("https", &text) {
                let printed = origin.to_string();
                let again = Origin::new("https", printed.strip_prefix("https://").unwrap()).unwrap();
                prop_assert_eq!(again, origin);
            }
        }

        #[test]
        fn what_parses_is_plain(text in "[a-zA-Z0-9.:@/\\[\\]%_-]{1,24}") {
            if let Ok(origin) = Origin::new("http", &text) {
                let printed = origin.to_string();
                prop_assert!(!printed.contains('@') && !printed.contains('%') && !printed.contains(".:"));
                prop_assert_eq!(printed.matches('/').count(), 2);
            }
        }

        #[test]
        fn letters_case_is_all_that_may_differ(host in "[a-z][a-z0-9]{0,8}(\\.[a-z]{1,5}){0,2}", port in 1u16..) {
            let entry = format!("GET http://{host}:{port}");
            let rule: HttpRule = entry.parse().unwrap();
            let loud = format!("{}:{port}", host.to_uppercase());
            prop_assert!(rule.allows("GET", &Origin::new("http", &loud).unwrap()));
            for other in [format!("{host}x:{port}"), format!("x{host}:{port}"), format!("x.{host}:{port}")] {
                prop_assert!(!rule.allows("GET", &Origin::new("http", &other).unwrap()));
            }
        }
    }
}
