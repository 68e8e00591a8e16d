//! TensorBoard event files: scalars in length-prefixed records with masked CRC-32C checksums.
//!
//! The field numbers are those of TensorFlow's event.proto and summary.proto.

use crate::ObserveError;
use prost::Message;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

#[derive(Clone, PartialEq, Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    /// Optional, so that a zero is written too.
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

pub(crate) struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Creates a file and writes the version record that readers expect first.
    pub(crate) fn create(path: PathBuf, wall_time: f64) -> Result<Self, ObserveError> {
        let opened = OpenOptions::new().create_new(true).append(true).open(&path);
        let mut file = Self { file: opened.map_err(ObserveError::write(&path))?, path };
        let file_version = Some("brain.Event:2".to_owned());
        file.record(&Event { wall_time, step: 0, file_version, summary: None })?;
        Ok(file)
    }

    /// Appends the finite metrics of one step.
    pub(crate) fn append(
        &mut self,
        step: u64,
        wall_time: f64,
        metrics: &BTreeMap<String, f64>,
    ) -> Result<(), ObserveError> {
        let finite = metrics.iter().filter(|(_, value)| value.is_finite());
        let scalar =
            |(tag, value): (&String, &f64)| Scalar { tag: tag.clone(), simple_value: Some(*value as f32) };
        let summary = Some(Summary { value: finite.map(scalar).collect() });
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        self.record(&Event { wall_time, step, file_version: None, summary })
    }

    fn record(&mut self, event: &Event) -> Result<(), ObserveError> {
        let record = frame(&event.encode_to_vec());
        self.file.write_all(&record).map_err(ObserveError::write(&self.path))
    }
}

/// A record: length, checksum of the length, data, checksum of the data; all little-endian.
fn frame(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let (length_sum, data_sum) = (masked_crc(&length).to_le_bytes(), masked_crc(data).to_le_bytes());
    [&length[..], &length_sum, data, &data_sum].concat()
}

/// TFRecord's masking keeps the checksum of data that holds checksums from degenerating.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bitwise CRC-32C (reflected polynomial 0x82F63B78), written apart from the crate under test.
    fn slow_crc(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |c, _| (c >> 1) ^ (0x82F6_3B78 & (c & 1).wrapping_neg()))
        })
    }

    /// Splits a file into the data of its records, checking lengths and checksums.
    fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let unmask = |sum: u32| sum.wrapping_sub(0xa282_ead8).rotate_left(15);
        let u32_at = |b: &[u8]| u32::from_le_bytes(b[..4].try_into().expect("four bytes"));
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
            assert_eq!(unmask(u32_at(&bytes[8..])), slow_crc(&bytes[..8]));
            let data = &bytes[12..12 + length];
            assert_eq!(unmask(u32_at(&bytes[12 + length..])), slow_crc(data));
            found.push(data.to_vec());
            bytes = &bytes[16 + length..];
        }
        found
    }

    #[test]
    fn crc_reference() {
        // The check value of CRC-32C for the nine digits, as in RFC 3720's family of test vectors.
        assert_eq!(slow_crc(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn an_event_has_the_bytes_of_the_format() {
        let summary = Summary { value: vec![Scalar { tag: "r".into(), simple_value: Some(0.0) }] };
        let event = Event { wall_time: 1.0, step: 3, file_version: None, summary: Some(summary) };
        // By hand: field 1 double 1.0; field 2 varint 3; field 5 { field 1 { field 1 "r"; field 2 float 0 } }.
        let wanted = [
            &[0x09, 0, 0, 0, 0, 0, 0, 0xF0, 0x3F, 0x10, 3, 0x2A, 10][..],
            &[0x0A, 8, 0x0A, 1, b'r', 0x15, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(event.encode_to_vec(), wanted);
    }

    #[test]
    fn an_independent_reader_finds_every_scalar() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("events");
        let mut file = EventFile::create(path.clone(), 10.0).expect("creates");
        let metrics = BTreeMap::from([("reward".to_owned(), 0.5), ("gap".to_owned(), f64::INFINITY)]);
        file.append(7, 11.0, &metrics).expect("appends");
        let bytes = std::fs::read(&path).expect("reads");
        let events: Vec<_> =
            records(&bytes).iter().map(|r| Event::decode(r.as_slice()).expect("decodes")).collect();
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        let scalars = &events[1].summary.as_ref().expect("a summary").value;
        assert_eq!((events.len(), events[1].step, events[1].wall_time), (2, 7, 11.0));
        assert_eq!(scalars, &[Scalar { tag: "reward".into(), simple_value: Some(0.5) }]);
    }
}
