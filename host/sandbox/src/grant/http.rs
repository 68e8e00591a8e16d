//! The grant `http`: `wasi:http/outgoing-handler` to the origins that the run names, within bounds.

use http::{HeaderName, Method, Request, Response, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use molt_core::settings::{Grants, HttpRule, Origin};
use reqwest::{Client, Url};
use std::error::Error as StdError;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi_http::p2::bindings::http::types::{self, HostOutgoingRequest as _, Method as AnyMethod};
use wasmtime_wasi_http::p2::bindings::{LinkOptions, http as bindings};
use wasmtime_wasi_http::{
    DEFAULT_FORBIDDEN_HEADERS, Error, ForbiddenHeaderFilter, RequestOptions, WasiBody, WasiHttp, WasiHttpCtx,
    WasiHttpCtxView, WasiHttpHooks,
};

use super::client;
use super::open::OpenFile;
use crate::plugin::Data;
use crate::quote;

/// Bytes of all headers of a request or a response.
const HEADERS: usize = 32 << 10;

/// Requests and responses that one instance may have under way at a time: each is a connection.
const UNDER_WAY: usize = 16;

/// Bytes of a path with its query.
const PATH: usize = 8 << 10;

/// Bytes that a guest may write at once. The host keeps two such pieces of every request that is not sent yet, and a
/// guest may have as many of these as it may have handles.
const CHUNK: usize = 16 << 10;

/// Bytes of a method.
const METHOD: usize = 32;

/// Headers that say how the message is sent, which is the host's business.
const FORBIDDEN: [HeaderName; 4] = [header::CONTENT_LENGTH, header::TE, header::TRAILER, header::EXPECT];

/// The version of the interface that wasmtime links, which serves all others of 0.2.
const TYPES: &str = "wasi:http/types@0.2.12";

type Exchange = (Response<WasiBody>, Box<dyn Future<Output = Result<(), Error>> + Send>);

/// What one plugin may send.
pub(crate) struct Http {
    plugin: String,
    rules: Vec<HttpRule>,
    time: Duration,
    bytes: u64,
    requests: u64,
    client: Client,
}

impl Http {
    /// Reads the allow-list.
    pub(crate) fn new(plugin: &str, grants: &Grants) -> Result<Self, String> {
        let rules = grants
            .http
            .iter()
            .map(|entry| entry.parse().map_err(|e| format!("{e}")))
            .collect::<Result<_, _>>()?;
        // No proxy: the request goes to the granted host. No pool: no connection outlives its instance.
        let client = client::builder().no_proxy().pool_max_idle_per_host(0).build();
        Ok(Self {
            plugin: plugin.to_owned(),
            rules,
            time: Duration::from_secs(grants.http_s),
            bytes: grants.http_kib.saturating_mul(1024),
            requests: grants.http_requests,
            client: client.map_err(|e| format!("{e}"))?,
        })
    }

    /// The URL of an allowed request, built from the origin as the allow-list has it.
    fn allowed(&self, request: &Request<WasiBody>) -> Result<Url, Error> {
        let uri = request.uri();
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let origin = Origin::new(uri.scheme_str().unwrap_or_default(), authority);
        let method = request.method().as_str();
        let Ok(origin) = origin.inspect_err(|why| tracing::debug!("{why}")) else {
            return Err(Error::HttpRequestDenied);
        };
        if !self.rules.iter().any(|rule| rule.allows(method, &origin)) {
            return Err(Error::HttpRequestDenied);
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        if path.len() > PATH {
            return Err(Error::HttpRequestUriTooLong);
        }
        let url = Url::parse(&format!("{origin}{path}")).map_err(|_| Error::HttpRequestUriInvalid)?;
        let port = url.port_or_known_default().unwrap_or(0);
        let read = Origin::new(url.scheme(), &format!("{}:{port}", url.host_str().unwrap_or_default()));
        if read.as_ref() == Ok(&origin) { Ok(url) } else { Err(Error::HttpRequestDenied) }
    }
}

/// The requests of one instance.
pub(crate) struct HttpState {
    context: WasiHttpCtx,
    hooks: Hooks,
}

impl HttpState {
    pub(crate) fn new(http: Option<Arc<Http>>) -> Self {
        let mut context = WasiHttpCtx::new();
        context.set_field_size_limit(HEADERS);
        Self {
            context,
            hooks: Hooks { http, sent: 0, refused: 0, slots: Arc::new(Semaphore::new(UNDER_WAY)) },
        }
    }
}

struct Hooks {
    http: Option<Arc<Http>>,
    /// Refused ones are counted too.
    sent: u64,
    refused: u64,
    slots: Arc<Semaphore>,
}

/// Links `wasi:http` to the allow-list.
pub(crate) fn link(linker: &mut Linker<Data>) -> wasmtime::Result<()> {
    let options = LinkOptions::default();
    bindings::outgoing_handler::add_to_linker::<Data, WasiHttp>(linker, view)?;
    bindings::types::add_to_linker::<Data, WasiHttp>(linker, &(&options).into(), view)?;
    // A method may be any word, and a request that is not sent yet keeps it.
    linker.instance(TYPES)?.func_wrap(
        "[method]outgoing-request.set-method",
        |mut store: StoreContextMut<'_, Data>,
         (request, method): (Resource<types::OutgoingRequest>, AnyMethod)| {
            let mut view = view(store.data_mut());
            if matches!(&method, AnyMethod::Other(word) if word.len() > METHOD) {
                return Ok((Err(()),));
            }
            Ok((view.set_method(request, method)?,))
        },
    )
}

fn view(data: &mut Data) -> WasiHttpCtxView<'_> {
    let data = data.counted();
    let state = &mut data.grants.http;
    WasiHttpCtxView { ctx: &mut state.context, hooks: &mut state.hooks, table: &mut data.table }
}

impl WasiHttpHooks for Hooks {
    fn forbidden_header_filter(&mut self) -> ForbiddenHeaderFilter {
        Arc::new(|name| DEFAULT_FORBIDDEN_HEADERS.contains(name) || FORBIDDEN.contains(name))
    }

    fn set_host_header(&mut self) -> bool {
        false
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK
    }

    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = Result<Exchange, Error>> + Send> {
        let Some(http) = self.http.clone() else {
            return Box::new(async { Err(Error::HttpRequestDenied) });
        };
        self.sent = self.sent.saturating_add(1);
        if self.sent > http.requests {
            let spent =
                format!("the {} HTTP requests that the run grants to one instance are spent", http.requests);
            return Box::new(async move { Err(Error::InternalError(Some(spent))) });
        }
        let url = http.allowed(&request).inspect_err(|_| {
            self.refused += 1;
            if self.refused > 1 {
                return;
            }
            let [method, uri] = [request.method().to_string(), request.uri().to_string()];
            let (method, uri) = (quote::beginning(&method), quote::beginning(&uri));
            tracing::warn!(plugin = http.plugin, "refused to send {method} {uri}, which is not granted");
        });
        let slot = self.slots.clone().try_acquire_owned();
        Box::new(async move {
            let slot = slot.map_err(|_| Error::ConnectionLimitReached)?;
            let open = OpenFile::new().map_err(|_| Error::ConnectionLimitReached)?;
            let response = http.exchange(url?, request, options).await?;
            // This ends when the guest drops the response's body, and gives the slot back.
            let held = async move {
                let _held = (slot, open);
                std::future::pending().await
            };
            Ok((response, Box::new(held) as Box<_>))
        })
    }
}

impl Http {
    /// Sends the request when its body is complete, and answers when the headers of the response are there.
    async fn exchange(
        &self,
        url: Url,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
    ) -> Result<Response<WasiBody>, Error> {
        let end = Instant::now() + self.time;
        let limit = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        let (head, body) = request.into_parts();
        let body = tokio::time::timeout_at(end, Limited::new(body, limit).collect()).await;
        let body =
            body.map_err(|_| Error::ConnectionWriteTimeout)?.map_err(|e| self.request_error(e))?.to_bytes();
        let mut headers = head.headers;
        for name in DEFAULT_FORBIDDEN_HEADERS.iter().chain(&FORBIDDEN) {
            headers.remove(name);
        }
        let left = end.saturating_duration_since(Instant::now());
        let mut message = self.client.request(head.method.clone(), url).headers(headers).timeout(left);
        if !body.is_empty() || !matches!(head.method, Method::GET | Method::HEAD) {
            message = message.body(body);
        }
        let first = options.and_then(|options| options.first_byte_timeout).unwrap_or(left).min(left);
        let response = tokio::time::timeout(first, message.send()).await;
        let response = response.map_err(|_| Error::ConnectionReadTimeout)?.map_err(|e| send_error(&e))?;
        if response.content_length().is_some_and(|length| length > self.bytes) {
            return Err(Error::HttpResponseBodySize(response.content_length()));
        }
        let size: usize =
            response.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        if size > HEADERS {
            return Err(Error::HttpResponseHeaderSectionSize(u32::try_from(size).ok()));
        }
        let bytes = self.bytes;
        let body = |body| Limited::new(body, limit).map_err(move |e| response_error(bytes, e)).boxed_unsync();
        Ok(Response::<reqwest::Body>::from(response).map(body))
    }

    fn request_error(&self, error: Box<dyn StdError + Send + Sync>) -> Error {
        if error.is::<LengthLimitError>() {
            return Error::HttpRequestBodySize(Some(self.bytes));
        }
        error.downcast().map_or(Error::HttpProtocolError, |error| *error)
    }
}

fn response_error(bytes: u64, error: Box<dyn StdError + Send + Sync>) -> Error {
    if error.is::<LengthLimitError>() {
        return Error::HttpResponseBodySize(Some(bytes));
    }
    error.downcast_ref().map_or(Error::HttpProtocolError, send_error)
}

/// What a guest is told of a failed request; not the host's view of the network.
fn send_error(error: &reqwest::Error) -> Error {
    tracing::debug!("{error:?}");
    if error.is_timeout() {
        Error::HttpResponseTimeout
    } else if error.is_connect() {
        Error::ConnectionRefused
    } else {
        Error::HttpProtocolError
    }
}
