//! How the host makes HTTP requests for plugins: to the place that is named and no other.

use reqwest::{ClientBuilder, redirect};
use std::time::Duration;

/// Time to connect at most.
const CONNECT: Duration = Duration::from_secs(10);

/// A client that follows no redirect. Answers stay compressed as they came, since no decoder is built in.
pub(crate) fn builder() -> ClientBuilder {
    // The only provider of cryptography; installing it again changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().redirect(redirect::Policy::none()).connect_timeout(CONNECT)
}
