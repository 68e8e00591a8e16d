//! Reads GGUF version 3: metadata, and tensors as float32. Every length in the file is checked.

use crate::dequantize::Kind;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    List(Vec<Value>),
}

/// Where a tensor lies and what it is.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Outermost axis first, as in Hugging Face files; GGUF stores the reverse.
    pub(crate) shape: Vec<usize>,
    kind: Kind,
    data: std::ops::Range<usize>,
}

/// An open file; borrows its bytes.
#[derive(Debug)]
pub(crate) struct Gguf<'a> {
    bytes: &'a [u8],
    fields: BTreeMap<String, Value>,
    pub(crate) tensors: Vec<Tensor>,
}

impl<'a> Gguf<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Gguf<'a>> {
        let mut reader = Reader { bytes, position: 0 };
        if reader.take(4)? != b"GGUF" {
            bail!("not a GGUF file");
        }
        let version = reader.u32()?;
        if version != 3 {
            bail!("GGUF version {version} is not supported (3 is)");
        }
        let (tensor_count, field_count) = (reader.u64()?, reader.u64()?);
        let mut fields = BTreeMap::new();
        for _ in 0..field_count {
            let key = reader.text()?;
            let kind = reader.u32()?;
            let value = reader.value(kind, 0).with_context(|| format!("in the metadata field {key}"))?;
            fields.insert(key, value);
        }
        let mut entries = Vec::new();
        for _ in 0..tensor_count {
            entries.push(reader.tensor_entry()?);
        }
        let alignment = match fields.get("general.alignment") {
            None => 32,
            Some(Value::Integer(n)) if (1..=1 << 20).contains(n) => *n as usize,
            Some(other) => bail!("general.alignment is {other:?}, expected a small positive integer"),
        };
        let start = reader.position.next_multiple_of(alignment);
        let tensors =
            entries.into_iter().map(|entry| entry.place(start, bytes.len())).collect::<Result<_>>()?;
        Ok(Gguf { bytes, fields, tensors })
    }

    fn field(&self, key: &str) -> Result<&Value> {
        self.fields.get(key).with_context(|| format!("the GGUF file has no {key}"))
    }

    pub(crate) fn integer(&self, key: &str) -> Result<usize> {
        match self.field(key)? {
            Value::Integer(n) => usize::try_from(*n).with_context(|| format!("{key} is {n}")),
            other => bail!("{key} is {other:?}, expected an integer"),
        }
    }

    pub(crate) fn float(&self, key: &str) -> Result<f64> {
        match self.field(key)? {
            Value::Float(x) => Ok(*x),
            other => bail!("{key} is {other:?}, expected a number"),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<&str> {
        match self.field(key)? {
            Value::Text(text) => Ok(text),
            other => bail!("{key} is {other:?}, expected a string"),
        }
    }

    pub(crate) fn texts(&self, key: &str) -> Result<Vec<&str>> {
        let text = |value: &'_ Value| matches!(value, Value::Text(_));
        match self.field(key)? {
            Value::List(list) if list.iter().all(text) => Ok(list
                .iter()
                .filter_map(|v| if let Value::Text(t) = v { Some(t.as_str()) } else { None })
                .collect()),
            _ => bail!("{key} is not a list of strings"),
        }
    }

    pub(crate) fn integers(&self, key: &str) -> Result<Vec<i128>> {
        let Value::List(list) = self.field(key)? else { bail!("{key} is not a list") };
        list.iter()
            .map(
                |v| {
                    if let Value::Integer(n) = v {
                        Ok(*n)
                    } else {
                        bail!("{key} holds {v:?}, not an integer")
                    }
                },
            )
            .collect()
    }

    /// The numbers of a tensor in row-major order.
    pub(crate) fn numbers(&self, tensor: &Tensor) -> Vec<f32> {
        tensor.kind.dequantize(&self.bytes[tensor.data.clone()])
    }
}

struct Entry {
    name: String,
    shape: Vec<usize>,
    kind: Kind,
    offset: u64,
}

impl Entry {
    fn place(self, start: usize, end: usize) -> Result<Tensor> {
        let place = || {
            let numbers = self.shape.iter().try_fold(1_usize, |product, n| product.checked_mul(*n))?;
            let first = start.checked_add(usize::try_from(self.offset).ok()?)?;
            let last = first.checked_add(self.kind.bytes(numbers)?)?;
            (last <= end).then_some(first..last)
        };
        match place() {
            Some(data) => Ok(Tensor { name: self.name, shape: self.shape, kind: self.kind, data }),
            None => bail!("the tensor {} {:?} does not fit into the file", self.name, self.shape),
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.position.checked_add(count);
        match end.and_then(|end| self.bytes.get(self.position..end)) {
            Some(bytes) => {
                self.position += count;
                Ok(bytes)
            }
            None => bail!("the GGUF file ends early, at byte {}", self.bytes.len()),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("invariant: take returns what was asked for"))
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String> {
        let length = usize::try_from(self.u64()?).context("a string longer than memory")?;
        String::from_utf8(self.take(length)?.to_vec()).context("a string that is not UTF-8")
    }

    /// A value of type number `kind`; lists nest at most `MAX_DEPTH` deep.
    fn value(&mut self, kind: u32, depth: u32) -> Result<Value> {
        const MAX_DEPTH: u32 = 4;
        Ok(match kind {
            0 => Value::Integer(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Integer(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Integer(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Integer(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Integer(self.u32()?.into()),
            5 => Value::Integer(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.array::<1>()? != [0]),
            8 => Value::Text(self.text()?),
            9 if depth < MAX_DEPTH => {
                let (kind, count) = (self.u32()?, self.u64()?);
                let mut list = Vec::new();
                for _ in 0..count {
                    list.push(self.value(kind, depth + 1)?);
                }
                Value::List(list)
            }
            10 => Value::Integer(self.u64()?.into()),
            11 => Value::Integer(i64::from_le_bytes(self.array()?).into()),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            _ => bail!("a value of type {kind} at depth {depth} is not supported"),
        })
    }

    fn tensor_entry(&mut self) -> Result<Entry> {
        let name = self.text()?;
        let axes = self.u32()?;
        if axes > 4 {
            bail!("the tensor {name} has {axes} axes, expected at most 4");
        }
        let mut shape = Vec::new();
        for _ in 0..axes {
            shape.push(usize::try_from(self.u64()?).with_context(|| format!("the shape of {name}"))?);
        }
        shape.reverse();
        let kind = Kind::from_number(self.u32()?).with_context(|| format!("the tensor {name}"))?;
        Ok(Entry { name, shape, kind, offset: self.u64()? })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A GGUF file with float32 tensors, written after the GGUF specification.
    pub(crate) fn encode(fields: &[(&str, Value)], tensors: &[(&str, &[usize], &[f32])]) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend((fields.len() as u64).to_le_bytes());
        for (key, value) in fields {
            text(&mut out, key);
            out.extend(type_of(value).to_le_bytes());
            contents(&mut out, value);
        }
        let mut offset = 0_u64;
        for (name, shape, numbers) in tensors {
            text(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|axis| out.extend((*axis as u64).to_le_bytes()));
            out.extend(0_u32.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += 4 * numbers.len() as u64;
        }
        out.resize(out.len().next_multiple_of(32), 0);
        tensors.iter().flat_map(|tensor| tensor.2).for_each(|number| out.extend(number.to_le_bytes()));
        out
    }

    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }

    fn type_of(value: &Value) -> u32 {
        match value {
            Value::Integer(_) => 4,
            Value::Float(_) => 6,
            Value::Bool(_) => 7,
            Value::Text(_) => 8,
            Value::List(_) => 9,
        }
    }

    fn contents(out: &mut Vec<u8>, value: &Value) {
        match value {
            Value::Integer(n) => out.extend((*n as u32).to_le_bytes()),
            Value::Float(x) => out.extend((*x as f32).to_le_bytes()),
            Value::Bool(b) => out.push(u8::from(*b)),
            Value::Text(t) => text(out, t),
            Value::List(list) => {
                out.extend(list.first().map_or(4, type_of).to_le_bytes());
                out.extend((list.len() as u64).to_le_bytes());
                list.iter().for_each(|value| contents(out, value));
            }
        }
    }

    /// Three fields and one tensor of shape [2, 3].
    fn small() -> Vec<u8> {
        let tokens = vec![Value::Text("a".into()), Value::Text("Ġb".into())];
        let fields = [
            ("llama.block_count", Value::Integer(30)),
            ("tokens", Value::List(tokens)),
            ("base", Value::Float(1e5)),
        ];
        encode(&fields, &[("w", &[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])])
    }

    #[test]
    fn fields_and_tensors_are_read() {
        let bytes = small();
        let file = Gguf::parse(&bytes).expect("well-formed");
        assert_eq!(file.integer("llama.block_count").expect("present"), 30);
        assert_eq!(file.texts("tokens").expect("present"), ["a", "Ġb"]);
        assert_eq!(file.float("base").expect("present"), 1e5);
        assert!(file.text("base").is_err() && file.integer("absent").is_err());
        assert_eq!(file.tensors[0].shape, [2, 3]);
        assert_eq!(file.numbers(&file.tensors[0]), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn every_cut_is_an_error_and_none_a_panic() {
        let bytes = small();
        for end in 0..bytes.len() {
            assert!(Gguf::parse(&bytes[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn damaged_lengths_are_errors() {
        let bytes = small();
        for position in 0..bytes.len() - 24 {
            let mut damaged = bytes.clone();
            damaged[position] = 0xff;
            // Whatever it says, it must return; most positions are lengths, counts or types.
            let _ = Gguf::parse(&damaged)
                .map(|file| file.tensors.iter().map(|t| file.numbers(t).len()).sum::<usize>());
        }
        let mut version = bytes;
        version[4] = 2;
        assert!(Gguf::parse(&version).expect_err("version 2").to_string().contains("version 2"));
    }
}
