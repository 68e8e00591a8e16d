//! What is read of a registry. It may answer anything, without an end, or a byte a minute.

use super::{Reference, Registry, RegistryError, sha256};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http_auth::{ChallengeRef, parser::ChallengeParser};
use oci_client::manifest::{OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE};
use oci_client::secrets::RegistryAuth;
use reqwest::header::{ACCEPT, WWW_AUTHENTICATE};
use reqwest::{RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use std::io;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// Size of a manifest at most: what registries have to take.
const MANIFEST_BYTES: usize = 4 << 20;
/// Size of a token with what is said about it at most.
const TOKEN_BYTES: usize = 1 << 20;

/// Time until an answer begins.
const BEGIN: Duration = Duration::from_secs(60);
/// What has to arrive of an answer, or its end, in this time.
const PACE: Pace = Pace { bytes: 16 << 10, within: Duration::from_secs(30) };

/// One conversation about what is at `reference`.
pub(super) struct Fetch<'a> {
    registry: &'a Registry,
    reference: &'a Reference,
    /// What the registry gave for the account, or for nobody in particular.
    token: Option<String>,
}

/// An account service's answer: two names for the same.
#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl<'a> Fetch<'a> {
    pub(super) fn new(registry: &'a Registry, reference: &'a Reference) -> Self {
        Self { registry, reference, token: None }
    }

    /// The manifest, which has the digest of the reference if there is one, and the digest of its bytes.
    pub(super) async fn manifest(&mut self) -> Result<(Vec<u8>, String), RegistryError> {
        let reference = self.reference;
        let wanted = reference.digest().or(reference.tag()).unwrap_or_default();
        let response = self.get(&format!("manifests/{wanted}")).await?;
        let told = response.headers().get("docker-content-digest").and_then(|digest| digest.to_str().ok());
        let told = told.filter(|digest| digest.starts_with("sha256:")).map(str::to_owned);
        let bytes = self.whole(response, "manifest", MANIFEST_BYTES).await?;
        let found = sha256(&bytes);
        match reference.digest().map(str::to_owned).or(told) {
            Some(expected) if expected != found => {
                let reference = reference.to_string();
                Err(RegistryError::Tampered { what: "manifest", reference, expected, found })
            }
            _ => Ok((bytes, found)),
        }
    }

    /// The blocks of a blob, as they come.
    pub(super) async fn blob(
        &mut self,
        digest: &str,
    ) -> Result<Paced<impl Stream<Item = reqwest::Result<Bytes>> + use<>>, RegistryError> {
        Ok(Paced::new(self.get(&format!("blobs/{digest}")).await?.bytes_stream(), PACE))
    }

    /// Asks for a part of the repository, a second time if the registry wants to know who asks.
    async fn get(&mut self, part: &str) -> Result<Response, RegistryError> {
        let image = self.reference.inner();
        let (host, repository) = (image.resolve_registry(), image.repository());
        let url = format!("{}://{host}/v2/{repository}/{part}", self.registry.scheme);
        let accepted = [OCI_IMAGE_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE, "*/*;q=0.1"].join(", ");
        let request = || self.registry.http.get(&url).header(ACCEPT, &accepted);
        let first = match &self.token {
            Some(token) => request().bearer_auth(token),
            None => request(),
        };
        let mut response = self.send(first).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            let challenges = response.headers().get_all(WWW_AUTHENTICATE).iter();
            let challenges: Vec<String> =
                challenges.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect();
            if let Some(second) = self.authorized(request(), &challenges).await? {
                response = self.send(second).await?;
            }
        }
        let host = || self.reference.host().to_owned();
        match response.status() {
            status if status.is_success() => Ok(response),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(RegistryError::Unauthorized { host: host() })
            }
            StatusCode::NOT_FOUND => Err(RegistryError::NotFound { reference: self.reference.to_string() }),
            status => Err(RegistryError::Status { host: host(), status: status.as_u16() }),
        }
    }

    /// The request with what one of the registry's challenges asks for; none if nothing can be given.
    async fn authorized(
        &mut self,
        request: RequestBuilder,
        challenges: &[String],
    ) -> Result<Option<RequestBuilder>, RegistryError> {
        let all = challenges.iter().flat_map(|text| ChallengeParser::new(text).filter_map(Result::ok));
        let all: Vec<ChallengeRef<'_>> = all.collect();
        let scheme = |name: &str| all.iter().find(|challenge| challenge.scheme.eq_ignore_ascii_case(name));
        if let Some(bearer) = scheme("Bearer") {
            let token = self.fetch_token(bearer).await?;
            let request = token.as_ref().map(|token| request.bearer_auth(token));
            self.token = token;
            return Ok(request);
        }
        match (&self.registry.auth, scheme("Basic")) {
            (RegistryAuth::Basic(name, password), Some(_)) => {
                Ok(Some(request.basic_auth(name, Some(password))))
            }
            _ => Ok(None),
        }
    }

    /// Asks the service that the registry names for a token that permits to pull.
    async fn fetch_token(&self, challenge: &ChallengeRef<'_>) -> Result<Option<String>, RegistryError> {
        let parameter = |name: &str| {
            let mut all = challenge.params.iter();
            all.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_unescaped())
        };
        let Some(realm) = parameter("realm").and_then(|realm| Url::parse(&realm).ok()) else {
            return Ok(None);
        };
        // A password that was to go encrypted does not go otherwise because a registry says so.
        if realm.scheme() != "https" && realm.scheme() != self.registry.scheme {
            return Ok(None);
        }
        let mut request = self.registry.http.get(realm);
        let scope = format!("repository:{}:pull", self.reference.inner().repository());
        request = request.query(&[("scope", scope)]);
        if let Some(service) = parameter("service") {
            request = request.query(&[("service", service)]);
        }
        if let RegistryAuth::Basic(name, password) = &self.registry.auth {
            request = request.basic_auth(name, Some(password));
        }
        let response = self.send(request).await?;
        if !response.status().is_success() {
            return Ok(None);
        }
        let text = self.whole(response, "token", TOKEN_BYTES).await?;
        let token = serde_json::from_slice::<Token>(&text).ok();
        Ok(token.and_then(|token| token.token.or(token.access_token)))
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, RegistryError> {
        match timeout(BEGIN, request.send()).await {
            Ok(sent) => sent.map_err(|error| RegistryError::of(self.reference, error.into())),
            Err(_) => Err(self.interrupted("answer", io::ErrorKind::TimedOut.into())),
        }
    }

    /// An answer that is kept in memory.
    async fn whole(
        &self,
        response: Response,
        what: &'static str,
        most: usize,
    ) -> Result<Vec<u8>, RegistryError> {
        let mut whole = Vec::new();
        let mut blocks = Paced::new(response.bytes_stream(), PACE);
        while let Some(block) = blocks.next().await.map_err(|error| self.interrupted(what, error))? {
            if whole.len() + block.len() > most {
                return Err(RegistryError::Endless { what, host: self.reference.host().to_owned(), most });
            }
            whole.extend_from_slice(&block);
        }
        Ok(whole)
    }

    fn interrupted(&self, what: &'static str, source: io::Error) -> RegistryError {
        RegistryError::Broken { what, host: self.reference.host().to_owned(), source }
    }
}

/// How slow an answer may be.
#[derive(Clone, Copy)]
struct Pace {
    bytes: usize,
    within: Duration,
}

/// Blocks that have to keep a pace: time without progress ends them, and so does progress byte by byte.
pub(super) struct Paced<S> {
    blocks: std::pin::Pin<Box<S>>,
    pace: Pace,
    arrived: usize,
    until: Instant,
}

impl<S: Stream<Item = Result<Bytes, E>>, E: std::error::Error + Send + Sync + 'static> Paced<S> {
    fn new(blocks: S, pace: Pace) -> Self {
        Self { blocks: Box::pin(blocks), pace, arrived: 0, until: Instant::now() + pace.within }
    }

    /// The next block; none at the end.
    pub(super) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        let Ok(block) = timeout_at(self.until, self.blocks.next()).await else {
            let Pace { bytes, within } = self.pace;
            let slow = format!("less than {bytes} bytes came in {within:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, slow));
        };
        let block = block.transpose().map_err(io::Error::other)?;
        self.arrived += block.as_ref().map_or(0, Bytes::len);
        if self.arrived >= self.pace.bytes {
            (self.arrived, self.until) = (0, Instant::now() + self.pace.within);
        }
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use futures_util::stream;
    use tokio::time::sleep;

    /// A thousand blocks of `size` bytes, each `pause` after the one before; how it goes on.
    async fn read(size: usize, pause: Duration, pace: Pace) -> io::Result<usize> {
        let block = move |_| async move {
            sleep(pause).await;
            Ok::<_, io::Error>(Bytes::from(vec![0; size]))
        };
        let mut blocks = Paced::new(stream::iter(0..1000).then(block), pace);
        let mut read = 0;
        while let Some(block) = blocks.next().await? {
            read += block.len();
        }
        Ok(read)
    }

    #[tokio::test]
    async fn what_drips_or_stands_still_is_ended_and_what_goes_on_is_not() {
        let pace = Pace { bytes: 1000, within: Duration::from_millis(200) };
        for pause in [Duration::from_millis(2), Duration::from_secs(3600)] {
            let error = read(1, pause, pace).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(error.to_string().contains("less than 1000 bytes"), "{error}");
        }
        let patient = Pace { within: Duration::from_secs(3600), ..pace };
        assert_eq!(read(1, Duration::ZERO, patient).await.unwrap(), 1000);
        // Longer than one span of time, and in each of them enough.
        let pace = Pace { bytes: 1, within: Duration::from_secs(600) };
        assert_eq!(read(1, Duration::from_millis(1), pace).await.unwrap(), 1000);
    }
}
